"""Values in plain files: the key is the path, which is looked up on demand.

If a checkpoint omits chunks that have only the fill value, a missing file means that value. A file that is removed
during the read must not mean it. So such a checkpoint is listed when it is opened, and every listed file must still
exist later.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from reshard.errors import CorruptError, StorageError
from reshard.formats.base import Extent
from reshard.storage.inside import Inside
from reshard.storage.local import reason_and_remedy, storage_error

_KEY_BYTES = 150
"""Memory of a listed key, besides its text (measured)."""


class PlainFiles:
    """The files below one item's folder; with ``is_listed`` the present files are remembered."""

    def __init__(self, directory: Path, *, is_listed: bool = False) -> None:
        self._root = f"{directory}/"
        self._inside = Inside(directory)
        self._listed = frozenset(_keys(str(directory))) if is_listed else frozenset()

    @property
    def metadata_bytes(self) -> int:
        return sum(_KEY_BYTES + len(key) for key in self._listed)

    def find(self, key: str, what: str) -> Extent | None:
        """The whole file; one ``lstat`` per call. Names that lead elsewhere were refused before."""
        path = self._root + key
        try:
            status = self._inside.status(path, what)
        except (FileNotFoundError, NotADirectoryError):
            self._refuse_vanished(key, what)
            return None
        except OSError as error:
            raise StorageError(
                f"{what}: {path} cannot be looked up: {reason_and_remedy(error)}"
            ) from error
        if not stat.S_ISREG(status.st_mode):
            raise CorruptError(f"{what}: {path} should be a plain file, but is not")
        return Extent(path, 0, status.st_size)

    def _refuse_vanished(self, key: str, what: str) -> None:
        if key in self._listed:
            raise StorageError(
                f"{what}: {self._root}{key} was there when the checkpoint was opened and is gone now; "
                "keep the checkpoint until it is read, then run again"
            )

    def tensorstore_spec(self, key: str, what: str) -> dict[str, Any]:  # noqa: ARG002
        return {"driver": "file", "path": f"{self._root}{key}/" if key else self._root}


def _keys(directory: str) -> Iterator[str]:
    """Every file below a folder, by its path from there."""

    def refuse(error: OSError) -> None:
        raise storage_error("list", error.filename or directory, error) from error

    for folder, _, names in os.walk(directory, onerror=refuse):
        below = folder[len(directory) :].lstrip("/")
        yield from (f"{below}/{name}" if below else name for name in names)
