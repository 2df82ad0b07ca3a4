"""The form of a client's path, the names that are reserved, and the problems of paths; nothing is looked up.

A client's path is ``ROOT/path``: the name of a storage root, and plain names below it between single slashes. It is
taken literally; nothing decodes or expands it. URLs are no paths.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable

from reshard_server.errors.problems import INVALID, NOT_FOUND, ProblemError

LINKS_FOLDER = ".reshard-held"
"""The folder in a root with hard links to steps that a training run may delete."""

REMOVED_PREFIX = ".reshard-removed-"
"""Prefix of outputs that are being removed."""

STAGING_SUFFIX = ".reshard-partial"
"""Suffix of the hidden folder in which the library writes a target until it is complete."""


def reserved(names: Iterable[str]) -> str | None:
    """The reason why a path with these names is reserved; None if it is not."""
    for name in names:
        if name.startswith(".") and name.endswith(STAGING_SUFFIX):
            return "has the name of a folder for unfinished output (.NAME.reshard-partial)"
        if name == LINKS_FOLDER:
            return "is in the folder for hard links to sources (.reshard-held)"
        if name.startswith(REMOVED_PREFIX):
            return "is in a folder that the server is removing (.reshard-removed-…)"
    return None


REFUSED_CHARACTERS = frozenset("%|?#;\\")
"""Characters with a special meaning for TensorStore, URLs or shells."""

REFUSED_CATEGORIES = frozenset({"Cc", "Cs", "Zl", "Zp"})
"""Control characters such as NUL, halves of surrogate pairs, and Unicode line ends."""

LONGEST_PATH = 4096
LONGEST_NAME = 255
"""In bytes; Linux's limits."""

_ROOT_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


def parts(text: str) -> tuple[str, tuple[str, ...]]:
    """The root's name and the names below it; ProblemError if the text is not a valid path."""
    root, *names = text.split("/")
    why = _wrong(text, root, names)
    if why is not None:
        raise ProblemError(
            INVALID,
            f"{text[:200]!r} is not a path below a storage root: {why}; give ROOT/path, with plain names between single "
            "slashes",
        )
    return root, tuple(names)


def may_be_named(name: str) -> bool:
    """True if a name below a root can be part of a client's path."""
    return "/" not in name and _wrong(name, "root", [name]) is None


def _wrong(text: str, root: str, names: list[str]) -> str | None:
    """The reason why a text is not a path; None if it is."""
    for character in text:
        if character in REFUSED_CHARACTERS or unicodedata.category(character) in REFUSED_CATEGORIES:
            return f"it has the character {character!a}"
    if len(text.encode()) > LONGEST_PATH:
        return f"it is longer than {LONGEST_PATH} bytes"
    if not names or root == "":
        return "it has no root's name before a slash"
    if not _ROOT_NAME.fullmatch(root):
        return f"{root[:100]!r} is not the name of a root"
    return next(filter(None, map(_wrong_name, names)), None)


def _wrong_name(name: str) -> str | None:
    if name == "":
        return "it has an empty name"
    if name in (".", ".."):
        return "it has a name of dots"
    too_long = len(name.encode()) > LONGEST_NAME
    return f"it has a name longer than {LONGEST_NAME} bytes" if too_long else None


def missing(text: str) -> ProblemError:
    """The problem if nothing exists at a path of an allowed root, or a link leads out of the root."""
    return ProblemError(NOT_FOUND, f"there is nothing at {text[:200]!r}; check the path")


def nothing(text: str) -> ProblemError:
    """The problem if the root does not exist, or the caller may not use it."""
    return ProblemError(
        NOT_FOUND,
        f"there is nothing at {text[:200]!r} that this token may use; check root and path",
    )
