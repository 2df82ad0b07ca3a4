"""Named layouts for routes and pages: found, and the problems if one is not there."""

from __future__ import annotations

from typing import Annotated

from fastapi import Path

from reshard_server.auth.tokens import Caller
from reshard_server.db import layouts
from reshard_server.errors.problems import NOT_FOUND, ProblemError
from reshard_server.schemas.layout import StoredLayout
from reshard_server.services import Services

LayoutVersion = Annotated[
    str,
    Path(
        description="Name of a layout, for its newest version; or name@version.",
        max_length=139,
        pattern=r"^[a-zA-Z0-9][a-zA-Z0-9._-]*(@[0-9]{1,10})?$",
        examples=["serving@3"],
    ),
]


def find(serving: Services, name: str) -> StoredLayout:
    """A layout, its newest version or ``name@version``, which every caller may see. ProblemError if there is none."""
    found = layouts.get(serving.database, name)
    if found is None:
        raise gone(name)
    return found


def check_owner(serving: Services, caller: Caller, name: str) -> None:
    """Raises ProblemError if the layout of this name belongs to another token."""
    layouts.check_owner(serving.database, name, token=caller.name, is_admin=caller.is_admin)


def tag_of(layout: StoredLayout | None) -> str | None:
    """The ETag of a version; it is unique among the versions of a name."""
    return None if layout is None else f'"{layout.name}-{layout.version}"'


def gone(name: str) -> ProblemError:
    """The problem for a layout that does not exist."""
    return ProblemError(
        NOT_FOUND, f"there is no layout {name!r}; list them at /v1/layouts, or store one"
    )
