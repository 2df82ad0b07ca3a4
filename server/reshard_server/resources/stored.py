"""Stored layouts, maps and views for routes and pages: found, stored, deleted, and the problems if one is not there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import Path

from reshard import check_arguments
from reshard_server.auth.tokens import Caller
from reshard_server.db.stored import versions
from reshard_server.db.stored.kinds import (
    LAYOUT,
    MAP,
    VIEW,
    StoredKind,
    StoredVersion,
    is_recipe,
)
from reshard_server.errors.problems import INVALID, NOT_FOUND, ProblemError
from reshard_server.jobs.check_request import check_view, for_field, refuse_name
from reshard_server.resources.resource import names_tag
from reshard_server.services import Services

VERSION_PATTERN = r"^[a-zA-Z0-9][a-zA-Z0-9._-]*(@[0-9]{1,10})?$"
BY_SEGMENT = {"layouts": LAYOUT, "maps": MAP, "views": VIEW}
"""The kinds by the part of a URL that names them."""

VersionName = Annotated[str, Path(max_length=139, pattern=VERSION_PATTERN)]
"""``name`` for the newest version, or ``name@version``."""


@dataclass(frozen=True, slots=True)
class Expectation:
    """The expectation of a request about the current version: its headers If-Match and If-None-Match."""

    match: str | None = None
    none_match: str | None = None

    def holds(self, now: StoredVersion | None) -> bool:
        """True if the current version, None if there is none, is as expected."""
        tag = tag_of(now)
        matches = self.match is None or names_tag(self.match, tag)
        return matches and not names_tag(self.none_match or "", tag)


def put(
    serving: Services,
    caller: Caller,
    kind: StoredKind,
    name: str,
    content: Any,
    expected: Expectation,
) -> tuple[StoredVersion, bool]:
    """Stores a version; returns it, and True if it is new. ProblemError for content of a wrong form."""
    return versions.put(
        serving.database,
        kind,
        name,
        check_view(serving, caller, content) if kind is VIEW else _checked(kind, name, content),
        token=caller.name,
        is_admin=caller.is_admin,
        expected=expected.holds,
        settings=serving.settings,
    )


def _checked(kind: StoredKind, name: str, content: Any) -> Any:
    if is_recipe(kind, name):
        raise ProblemError(
            INVALID,
            f"{name!r} is the name of a recipe, which comes with the server; choose another name",
            "name",
        )
    if kind is MAP:
        remedy = "send the content of a map file: an object, or text of several lines"
        refuse_name(content, "/map", remedy)
    with for_field(f"/{kind.noun}"):
        check_arguments(**{kind.noun: content})
    return content


def find(serving: Services, caller: Caller, kind: StoredKind, name: str) -> StoredVersion:
    """A version, the newest or ``name@version``. ProblemError if there is none that the caller may see."""
    found = versions.get(serving.database, kind, name)
    if found is None or not found.is_for(caller.may_read):
        raise gone(kind, name)
    return found


def delete(
    serving: Services, caller: Caller, kind: StoredKind, name: str, expected: Expectation
) -> None:
    """Deletes every version. ProblemError if there is none, or the caller may not."""
    find(serving, caller, kind, name)
    found = versions.delete(
        serving.database,
        kind,
        name,
        token=caller.name,
        is_admin=caller.is_admin,
        expected=expected.holds,
    )
    if found is None:
        raise gone(kind, name)


def check_owner(serving: Services, caller: Caller, kind: StoredKind, name: str) -> None:
    """Raises ProblemError if this name belongs to another token."""
    versions.check_owner(serving.database, kind, name, token=caller.name, is_admin=caller.is_admin)


def tag_of(found: StoredVersion | None) -> str | None:
    """The ETag of a version; it is unique among the versions of a name."""
    return None if found is None else f'"{found.name}-{found.version}"'


def gone(kind: StoredKind, name: str) -> ProblemError:
    """The problem for a name that is not stored."""
    return ProblemError(
        NOT_FOUND, f"there is no {kind.noun} {name!r}; list them at /v1/{kind.noun}s, or store one"
    )
