"""A resource: the object that a path names, its visibility, and the problems if it is not there. Routes and pages share it."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Generic, TypeVar

from fastapi import Query

from reshard_server.auth.tokens import Caller
from reshard_server.errors.problems import INVALID, NOT_ALLOWED, NOT_FOUND, ProblemError
from reshard_server.services import Services

R = TypeVar("R")

PageToken = Annotated[
    str | None, Query(max_length=1024, description="next_page_token of the previous page.")
]


@dataclass(frozen=True)
class Resource(Generic[R]):
    """A kind of resource.

    Attributes:
        noun: its name in the singular; the plural is the last part of its URL.
        read: the resource of a name, or None.
        owner: the name of the token that it belongs to; an admin sees those of all tokens.
        verbs: actions, which are posted to ``/NAME:VERB``; no name may end with one.
        pattern: of its names, if clients choose them; the form of the pattern is that of JSON schemas.
    """

    noun: str
    read: Callable[..., R | None]
    owner: Callable[[R], str]
    verbs: tuple[str, ...]
    pattern: str | None = None

    def visible(self, serving: Services, caller: Caller, name: str, **how: bool) -> R:
        """The resource; ProblemError if it does not exist or belongs to another token. ``how`` goes to ``read``."""
        found = self.read(serving.database, self.checked(name), **how)
        if found is None or not self.may_see(caller, found):
            raise self.gone(name)
        return found

    def may_see(self, caller: Caller, found: R) -> bool:
        """True if the resource belongs to the caller, or the caller is an admin."""
        return caller.is_admin or self.owner(found) == caller.name

    def gone(self, name: str) -> ProblemError:
        """The problem for a resource that does not exist."""
        return ProblemError(
            NOT_FOUND,
            f"there is no {self.noun} {name[:200]!r} that this token may see; list them at /v1/{self.noun}s",
        )

    def checked(self, name: str) -> str:
        """The name; ProblemError if no resource may have it."""
        if name.endswith(self.verbs):
            raise ProblemError(
                NOT_ALLOWED,
                f"{name[-200:]!r} ends with an action, which takes POST only; send POST, or remove the action",
                headers={"Allow": "POST"},
            )
        if self.pattern is not None and not re.fullmatch(self.pattern.rstrip("$"), name):
            raise ProblemError(
                INVALID,
                f"{name[:200]!r} is not a valid name of a {self.noun}; use letters, digits, dots, hyphens and underscores, with "
                "a letter or a digit first",
                "name",
            )
        return name


def names_tag(header: str, tag: str | None) -> bool:
    """True if the header names this ETag, compared weakly; never for None, the ETag of a resource that does not exist."""
    known = [known.strip().removeprefix("W/") for known in header.split(",")]
    return tag is not None and (tag in known or "*" in known)


def listed_token(caller: Caller) -> str | None:
    """The token whose resources a listing has; None for those of all tokens."""
    return None if caller.is_admin else caller.name
