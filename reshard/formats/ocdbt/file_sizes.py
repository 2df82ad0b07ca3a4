"""Checks extents against the sizes of their files; each size is looked up once."""

from __future__ import annotations

from pathlib import Path

from reshard.errors import CorruptError, StorageError
from reshard.formats.base import Extent
from reshard.storage.inside import Inside
from reshard.storage.local import reason_and_remedy


class FileSizes:
    """Sizes of files that were looked up so far; safe from any thread, since a second look-up does no harm."""

    def __init__(self, inside: Inside) -> None:
        self._inside = inside
        self._sizes: dict[str, int] = {}

    def check(self, extent: Extent, what: str) -> None:
        """Raises CorruptError, naming ``what``, if the extent reaches beyond the end of its file."""
        size = self.size(extent.path, what)
        if extent.offset + extent.length > size:
            raise CorruptError(
                f"{what}: truncated: expected {extent.length:,} bytes from offset {extent.offset:,} of "
                f"{extent.path}, which has only {size:,}; restore the file from a copy"
            )

    def size(self, path: str, what: str) -> int:
        """The file's size; CorruptError, naming ``what``, if there is no such plain file."""
        size = self._sizes.get(path)
        if size is None:
            self._inside.check(path, what)
            size = self._sizes[path] = _size(path, what)
        return size


def _size(path: str, what: str) -> int:
    file = Path(path)
    try:
        if not file.is_file():
            found = "is not a plain file" if file.exists() else "is missing"
            raise CorruptError(f"{what}: the data file {path} {found}; restore it from a copy")
        return file.stat().st_size
    except OSError as error:
        raise StorageError(
            f"{what}: {path} cannot be looked up: {reason_and_remedy(error)}"
        ) from error
