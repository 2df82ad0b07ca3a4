"""If-Match and If-None-Match: a change is made only if the resource has not changed meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

from fastapi import Header

IfMatch = Annotated[
    str | None,
    Header(
        description="Change it only if it still has this ETag; * if it exists.", max_length=1024
    ),
]
IfNoneMatch = Annotated[
    str | None,
    Header(description="Only if it has none of these ETags; * if it does not exist."),
]


def names(header: str, tag: str | None) -> bool:
    """Whether the header names this ETag; None if the resource does not exist."""
    known = [known.strip().removeprefix("W/") for known in header.split(",")]
    return tag is not None and (tag in known or "*" in known)


def expectation(if_match: str | None, if_none_match: str | None) -> Callable[[str | None], bool]:
    """A function of the current ETag (None if nothing exists): whether the request expects it."""

    def holds(tag: str | None) -> bool:
        matches = if_match is None or names(if_match, tag)
        return matches and not (if_none_match is not None and names(if_none_match, tag))

    return holds
