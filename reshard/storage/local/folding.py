"""Names that some file systems treat as one: they ignore case (SMB, NTFS, exFAT), or the Unicode composition of letters (APFS)."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from unicodedata import normalize

from reshard.errors import StorageError
from reshard.storage.local.files import storage_errors
from reshard.storage.location import Location

_PROBE = ".reshard-names"


def refuse_folded(root: Location, paths: Iterable[str]) -> None:
    """Raises StorageError if the file system of a local folder treats two of the paths, or of the folders above them, as one.

    The file system is tried only if two of them could be treated as one.
    """
    pairs = list(_alike(paths)) if root.traits.renames else []
    if not pairs:
        return
    if (found := _taken_for_one(Path(root.path), pairs)) is not None:
        one, other = found
        raise StorageError(
            f"the file system of {root} takes {one!r} and {other!r} for one name, so that what is stored there would be mixed; "
            "write an OCDBT database (ocdbt) or safetensors (to), rename one (rename), or choose a target on another file system"
        )


def _alike(paths: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Paths, and folders above them, that differ in case or composition only: the first of each such group, and another."""
    seen: dict[str, str] = {}
    for path in paths:
        for inner in _with_parents(path):
            first = seen.setdefault(_folded(inner), inner)
            if first != inner:
                yield first, inner


def _with_parents(path: str) -> Iterator[str]:
    while path:
        yield path
        path = path.rpartition("/")[0]


def _folded(path: str) -> str:
    if path.isascii():
        return path.lower()
    return normalize("NFD", normalize("NFD", path).casefold())


def _taken_for_one(root: Path, pairs: Iterable[tuple[str, str]]) -> tuple[str, str] | None:
    """The first pair that is one name on the file system of a folder; it is tried in a temporary folder there."""
    probe = root / _PROBE
    with storage_errors("try names in", probe):
        shutil.rmtree(probe, ignore_errors=True)  # left by a killed run
        probe.mkdir(parents=True)
        try:
            for one, other in pairs:
                (probe / one).mkdir(parents=True, exist_ok=True)
                if _is_there(probe / other):
                    return one, other
        finally:
            shutil.rmtree(probe, ignore_errors=True)
    return None


def _is_there(path: Path) -> bool:
    return os.path.lexists(path)
