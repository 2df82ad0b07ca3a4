"""If-Match and If-None-Match: a change happens only if nothing changed meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

from fastapi import Header

IfMatch = Annotated[
    str | None,
    Header(description="Only where it still has this ETag; * where it is there.", max_length=1024),
]
IfNoneMatch = Annotated[
    str | None,
    Header(description="Only where it has none of these ETags; * where it is not there."),
]


def names(header: str, tag: str | None) -> bool:
    """Whether such a header names this ETag; None is the ETag of what is not there."""
    known = [known.strip().removeprefix("W/") for known in header.split(",")]
    return tag is not None and (tag in known or "*" in known)


def expectation(if_match: str | None, if_none_match: str | None) -> Callable[[str | None], bool]:
    """Whether what has this ETag (None: what is not there) is what the request expects."""

    def holds(tag: str | None) -> bool:
        matches = if_match is None or names(if_match, tag)
        return matches and not (if_none_match is not None and names(if_none_match, tag))

    return holds
