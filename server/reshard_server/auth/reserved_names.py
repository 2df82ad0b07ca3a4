"""Names below a root that belong to the server or the library: never a target, never changed."""

from __future__ import annotations

from collections.abc import Iterable

HELD_FOLDER = ".reshard-held"
"""In a root, with hard links to what a training run may delete."""

REMOVED_PREFIX = ".reshard-removed-"
"""Of what is being removed, beside what is kept."""

STAGING_SUFFIX = ".reshard-partial"
"""Of the hidden folder in which the library has a target grow."""


def reserved(names: Iterable[str]) -> str | None:
    """Why a path of these names is reserved; None where it is not."""
    for name in names:
        if name.startswith(".") and name.endswith(STAGING_SUFFIX):
            return "has the name of a folder in which output grows (.NAME.reshard-partial)"
        if name == HELD_FOLDER:
            return "lies in the folder where the server holds what it reads (.reshard-held)"
        if name.startswith(REMOVED_PREFIX):
            return "lies in a folder that the server removes (.reshard-removed-…)"
    return None
