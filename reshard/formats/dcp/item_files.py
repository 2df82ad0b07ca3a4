"""The archives of items in their files: the beginning and the end of each, which have its pickle and its directory.

Elements are not read. Where each read is a request, many are asked for at once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from reshard.errors import CorruptError, FormatError, MissingError
from reshard.formats.dcp.entries import ItemPlace
from reshard.storage.base import FileStatus, OpenFile
from reshard.storage.calls import ByteRange, read_many
from reshard.storage.location import Location

END_BYTES = 1 << 10
"""Bytes that are read of the beginning and of the end of an archive: torch writes some 700 bytes before a tensor's elements and 800 after them."""

_ZIP = b"PK"
_HEADER = b'{"'
"""The beginning of the header of a safetensors file, behind the 8 bytes of its length."""


class ItemFiles:
    """The files that items are in; one is open at a time."""

    def __init__(self, root: Location, names: Sequence[str]) -> None:
        there = {entry.name for entry in root.entries()}
        missing = [name for name in names if name not in there]
        if missing:
            more = f" and {len(missing) - 1} more" if missing[1:] else ""
            raise MissingError(
                f"{root}: the metadata says that tensors are in {missing[0][:200]!r}{more}, but the folder has no such file; copy it there, "
                "or restore the folder from a copy"
            )
        self._root = root
        self._statuses: dict[str, FileStatus] = {}
        self._open: OpenFile | None = None
        self._name = ""

    def windows(
        self, batch: Sequence[ItemPlace], places: Mapping[ItemPlace, tuple[str, object]]
    ) -> Iterator[tuple[ItemPlace, ArchiveWindow]]:
        """The archive at each place."""
        ranges = {place: list(self._ends(place, places[place][0])) for place in batch}
        ahead = read_many(self._root.store, (part for parts in ranges.values() for part in parts))
        for place, parts in ranges.items():
            blocks = {
                part.offset: ahead.get(part) or self.read(place.file, part.offset, part.nbytes)
                for part in parts
            }
            yield place, ArchiveWindow(self, place, blocks, parts[0], places[place][0])

    def read(self, name: str, offset: int, nbytes: int) -> bytes:
        """Bytes of a file, fewer only at its end."""
        if self._open is None or self._name != name:
            self.close()
            self._open = (self._root / name).open(self._status(name).version)
            self._name = name
        return self._open.read(offset, nbytes)

    def close(self) -> None:
        """Closes the file, if one is open."""
        if self._open is not None:
            self._open.close()
        self._open = None

    def _ends(self, place: ItemPlace, what: str) -> Iterator[ByteRange]:
        """The beginning and the end of an archive."""
        found = self._status(place.file)
        path = str(self._root / place.file)
        if place.offset + place.nbytes > found.nbytes:
            raise CorruptError(
                f"{path} ends after {found.nbytes:,} bytes, but {what} is in {place.nbytes:,} bytes from {place.offset:,} on; it was cut "
                "short, so restore it from a copy"
            )
        if place.nbytes <= 2 * END_BYTES:
            yield ByteRange(path, found.version, place.offset, place.nbytes)
            return
        yield ByteRange(path, found.version, place.offset, END_BYTES)
        end = place.offset + place.nbytes
        yield ByteRange(path, found.version, end - END_BYTES, END_BYTES)

    def _status(self, name: str) -> FileStatus:
        if name not in self._statuses:
            self._statuses[name] = (self._root / name).status() or FileStatus("file")
        return self._statuses[name]


class ArchiveWindow:
    """One archive within its file; some of its bytes are read already.

    Attributes:
        where: its content and its file, for messages.
    """

    def __init__(
        self,
        files: ItemFiles,
        place: ItemPlace,
        blocks: Mapping[int, bytes],
        part: ByteRange,
        what: str,
    ) -> None:
        self._files, self._place, self._blocks = files, place, blocks
        self.path, self.version = part.path, part.version
        self.where = f"{self.path}: {what}"
        if not blocks[part.offset].startswith(_ZIP):
            self._refuse_safetensors()

    def read(self, offset: int, nbytes: int) -> bytes:
        """Bytes of the archive; CorruptError where there are fewer."""
        if offset + nbytes > self._place.nbytes:
            raise CorruptError(
                f"{self.where} ends after {self._place.nbytes:,} bytes, but a part of it should be at {offset:,}; restore the file from a copy"
            )
        start = self._place.offset + offset
        for begin, block in self._blocks.items():
            if begin <= start and start + nbytes <= begin + len(block):
                return block[start - begin : start - begin + nbytes]
        data = self._files.read(self._place.file, start, nbytes)
        if len(data) < nbytes:
            raise CorruptError(
                f"{self.where}: the file ends at byte {start + len(data):,}; restore it from a copy"
            )
        return data

    def _refuse_safetensors(self) -> None:
        """torch may write safetensors bytes into such files, one behind the other; the places that it records are wrong then."""
        start = self._files.read(self._place.file, 0, 10)
        if start[8:10] == _HEADER:
            raise FormatError(
                f"{self.path} is written in torch's SerializationFormat.SAFETENSORS, whose recorded places are wrong; save with "
                "HuggingFaceStorageWriter(save_distributed=True) instead, which is read"
            )
