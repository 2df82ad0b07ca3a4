"""Extents in the data files of databases, checked against the sizes of the files; each file is looked up once."""

from __future__ import annotations

from reshard.errors import CorruptError
from reshard.formats.contents import Extent
from reshard.storage.base import FileStatus
from reshard.storage.location import Location


class FileSizes:
    """Files by the text of their location; safe from any thread, since a second look-up does no harm."""

    def __init__(self) -> None:
        self._files: dict[str, Location] = {}
        self._found: dict[str, FileStatus] = {}

    def add(self, file: Location) -> str:
        """Adds a file and returns its text. Its size is looked up when something in it is first used."""
        path = str(file)
        self._files[path] = file
        return path

    def extent(self, path: str, offset: int, length: int, what: str) -> Extent:
        """A part of an added file; CorruptError, naming ``what``, if the file ends before."""
        found = self._status(path, what)
        if offset + length > found.nbytes:
            raise CorruptError(
                f"{what}: truncated: expected {length:,} bytes from offset {offset:,} of "
                f"{path}, which has only {found.nbytes:,}; restore the file from a copy"
            )
        return Extent(path, offset, length, version=found.version)

    def size(self, path: str, what: str) -> int:
        """The size of an added file; CorruptError, naming ``what``, if there is no such plain file."""
        return self._status(path, what).nbytes

    def _status(self, path: str, what: str) -> FileStatus:
        found = self._found.get(path)
        if found is None:
            found = self._found[path] = _look_up(self._files[path], what)
        return found


def _look_up(file: Location, what: str) -> FileStatus:
    found = file.status(what)
    if found is None or found.kind != "file":
        state = "is missing" if found is None else "is not a plain file"
        raise CorruptError(f"{what}: the data file {file} {state}; restore it from a copy")
    return found
