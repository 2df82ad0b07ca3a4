"""Opens the archive of a state dict: its end, which lists the records, its pickle, and the header of each record."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, contextmanager

from reshard.errors import CorruptError, FormatError
from reshard.formats.foreign import refuse_stand_in
from reshard.formats.state_dict.files import (
    ARCHIVE,
    LEGACY,
    WINDOW_BYTES,
    is_safetensors_start,
    start_of,
)
from reshard.formats.torch.archive import LOCAL_BYTES, OF_STATE, Archive, open_archive
from reshard.storage.base import FileStatus, OpenFile
from reshard.storage.calls import ByteRange, open_for_parts, read_many
from reshard.storage.location import Location


class StateArchive:
    """An archive in a file that is open.

    Attributes:
        version: identifies the content of the file; see ``FileStatus.version``.
    """

    def __init__(self, file: Location, found: FileStatus, opened: OpenFile, start: bytes) -> None:
        self.version = found.version
        self._file, self._found, self._opened = file, found, opened
        end = max(0, found.nbytes - WINDOW_BYTES)
        self._windows = ((0, start), (end, opened.read(end, found.nbytes - end)))
        self._ahead: Mapping[ByteRange, bytes] = {}
        self.archive: Archive = open_archive(self.read, found.nbytes, str(file), OF_STATE)

    def read(self, offset: int, nbytes: int) -> bytes:
        """Bytes of the file; CorruptError where there are fewer."""
        ahead = self._ahead.get(self._range(offset, nbytes))
        if ahead is not None:
            return ahead
        for begin, window in self._windows:
            if begin <= offset and offset + nbytes <= begin + len(window):
                return window[offset - begin : offset - begin + nbytes]
        data = self._opened.read(offset, nbytes)
        if len(data) < nbytes:
            raise CorruptError(
                f"{self._file} ends after {self._found.nbytes:,} bytes, but a part of it should be at {offset:,}; restore it from a copy"
            )
        return data

    def read_headers(self, names: Iterable[str]) -> None:
        """Reads the headers of records ahead where each read is a request."""
        records = self.archive.records
        found = (records[name] for name in names if name in records)
        ranges = (self._range(record.header, LOCAL_BYTES) for record in found)
        self._ahead = read_many(self._file.store, ranges)

    def _range(self, offset: int, nbytes: int) -> ByteRange:
        return ByteRange(str(self._file), self.version, offset, nbytes)


@contextmanager
def opened_archive(file: Location) -> Iterator[StateArchive]:
    """The archive in a file.

    Raises CorruptError where it is damaged, FormatError for features that ``torch.save`` does not write now.
    """
    found = file.status(f"the file {file.name!r}")
    if found is None or found.kind != "file":
        raise FormatError(f"{file} is no plain file; expected one that torch.save wrote")
    start = start_of(file)
    _refuse_others(start, file)
    with closing(open_for_parts(file, found)) as opened:
        one = StateArchive(file, found, opened, start)
        one.archive.refuse_big_endian()
        yield one


def _refuse_others(start: bytes, file: Location) -> None:
    refuse_stand_in(start, str(file))
    if start.startswith(LEGACY):
        raise FormatError(
            f"{file} is in the form that torch.save wrote before torch 1.6, which is not read; in torch, "
            "torch.save(torch.load(FILE, weights_only=True), 'NAME.pt') writes an archive, which is"
        )
    if is_safetensors_start(start):
        raise FormatError(
            f"{file} is a safetensors file by its content, whatever its name says; name the file itself, or give it a name that ends in "
            ".safetensors"
        )
    if not start.startswith(ARCHIVE):
        raise CorruptError(
            f"{file} should be an archive of torch.save, but it does not begin as an archive does; restore the file from a copy"
        )
