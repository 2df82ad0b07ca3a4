"""Names below a root that belong to the server or the library; clients may not write there."""

from __future__ import annotations

from collections.abc import Iterable

LINKS_FOLDER = ".reshard-held"
"""The folder in a root with hard links to steps that a training run may delete."""

REMOVED_PREFIX = ".reshard-removed-"
"""Prefix of outputs that are being removed."""

STAGING_SUFFIX = ".reshard-partial"
"""Suffix of the hidden folder in which the library writes a target until it is complete."""


def reserved(names: Iterable[str]) -> str | None:
    """Why a path with these names is reserved; None if it is not."""
    for name in names:
        if name.startswith(".") and name.endswith(STAGING_SUFFIX):
            return "has the name of a folder for unfinished output (.NAME.reshard-partial)"
        if name == LINKS_FOLDER:
            return "is in the folder for hard links to sources (.reshard-held)"
        if name.startswith(REMOVED_PREFIX):
            return "is in a folder that the server is removing (.reshard-removed-…)"
    return None
