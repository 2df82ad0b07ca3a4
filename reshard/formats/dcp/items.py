"""Reads the items of a checkpoint: the place of a tensor's elements, or another value itself, and the pieces of each tensor.

Of each archive the beginning and the end are read, which have its pickle and its directory; elements are not.
Where each read is a request, many are asked for at once.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from itertools import islice
from typing import Literal

from msgspec import Struct

from reshard.errors import CorruptError, FormatError, LayoutError, MissingError
from reshard.formats.contents import Extent, RawPiece
from reshard.formats.dcp.metadata import ItemPlace, TensorEntry, TensorPiece
from reshard.formats.limits import MAX_TENSOR_BYTES
from reshard.formats.loose_pieces import GatheredChunks, gathered_chunks
from reshard.formats.torch.archive import PICKLE, Archive, RecordCrcs, open_archive
from reshard.formats.torch.pickle_interpreter import read_pickle
from reshard.formats.torch.saved_values import (
    PLAIN_NAMES,
    TENSOR_NAMES,
    ArchivedTensor,
    PlainValues,
    Unread,
    archived_tensor,
    is_tensor,
    most_parts,
    plain_values,
)
from reshard.geometry.dtypes import storage_bytes
from reshard.geometry.tiling import check_tiling
from reshard.storage.base import FileStatus, OpenFile
from reshard.storage.calls import ByteRange, read_many
from reshard.storage.location import Location

_AT_ONCE = 1 << 10
"""Items whose ends are asked for together in a bucket."""

_KNOWNPICKLES, _KNOWN_BYTES = 1 << 12, 1 << 10
"""The number of pickles that are kept, and their greatest length: those of the layers of a model are alike, and short."""


class StoredItem(Struct, frozen=True):
    """An item that holds a tensor: the place of its first element.

    Attributes:
        path: the text of the file's location.
        version: identifies the content of the file; see ``FileStatus.version``.
        crc: CRC-32 of its elements; 0 where none is recorded.
    """

    tensor: ArchivedTensor
    path: str
    offset: int
    version: str
    crc: int = 0


class StoredValue(Struct, frozen=True):
    """An item that holds another value.

    Attributes:
        values: its content, or the kind of a value that is not read.
        digest: of the archive's content, 8 hex digits; "" where all checksums are 0.
        version: as that of ``StoredItem``.
    """

    values: PlainValues
    path: str
    digest: str
    version: str = ""

    def is_like(self, other: StoredValue) -> bool:
        """True if both have the same content."""
        if self.digest and other.digest:
            return self.digest == other.digest
        return self.values == other.values


ExpectedKind = Literal["a tensor", "a value", "anything"]
"""The expected content of an item; ``"anything"`` is not looked at."""

Wanted = tuple[ItemPlace, str, ExpectedKind]
"""A place, its expected content in words, for messages, and the kind of that content."""


def read_items(root: Location, wanted: Iterable[Wanted]) -> dict[ItemPlace, StoredItem | StoredValue]:  # fmt: skip
    """The items at these places.

    Raises:
        MissingError: a file is not there.
        CorruptError: an archive is damaged, cut short, or holds something else than expected.
        FormatError: it uses a feature that is not read.
    """
    return dict(each_item(root, wanted))


def each_item(
    root: Location, wanted: Iterable[Wanted]
) -> Iterator[tuple[ItemPlace, StoredItem | StoredValue]]:
    """The items at these places, one after the other, by file and offset. Raises as ``read_items``."""
    places = _by_place(root, wanted)
    files = ItemFiles(root, sorted({place.file for place in places}))
    known: dict[bytes, ArchivedTensor] = {}
    ordered = iter(sorted(places, key=lambda place: (place.file, place.offset)))
    with closing(files):
        while batch := list(islice(ordered, _AT_ONCE)):
            for place, window in files.windows(batch, places):
                yield place, _item(place, window, places[place][1], known)


def _item(
    place: ItemPlace,
    window: ArchiveWindow,
    expected: ExpectedKind,
    known: dict[bytes, ArchivedTensor],
) -> StoredItem | StoredValue:
    archive = open_archive(window.read, place.nbytes, window.where)
    if expected != "anything":
        archive.refuse_big_endian()
    if expected == "a tensor":
        return _tensor_item(archive, place, window, known)
    values = _values(archive, window.where) if expected == "a value" else Unread("")
    return StoredValue(values, window.path, archive.digest(), window.version)


def _by_place(
    root: Location, wanted: Iterable[Wanted]
) -> dict[ItemPlace, tuple[str, ExpectedKind]]:
    """The expected content of each place. Raises CorruptError for a tensor and another value at one place."""
    places: dict[ItemPlace, tuple[str, ExpectedKind]] = {}
    for place, what, expected in wanted:
        other, other_expected = places.setdefault(place, (what, expected))
        if other_expected != expected:
            raise CorruptError(
                f"{root / place.file}: the metadata has {other} and {what} at the same place; restore it from a copy"
            )
    return places


def _tensor_item(
    archive: Archive, place: ItemPlace, window: ArchiveWindow, known: dict[bytes, ArchivedTensor]
) -> StoredItem:
    pickled = archive.small(PICKLE)
    tensor = known.get(pickled)
    if tensor is None:
        node = read_pickle(pickled, TENSOR_NAMES, window.where, is_closed=True)
        if not is_tensor(node):
            raise CorruptError(
                f"{window.where} holds something else than a tensor; the files are not of one checkpoint"
            )
        tensor = archived_tensor(node, window.where)
        if len(known) < _KNOWNPICKLES and len(pickled) <= _KNOWN_BYTES:
            known[pickled] = tensor
    record, start = archive.start(tensor.record)
    if record.nbytes != tensor.record_bytes:
        raise CorruptError(
            f"{window.where} has {record.nbytes:,} bytes of elements; expected {tensor.record_bytes:,}, so restore the file from a copy"
        )
    offset = place.offset + start + tensor.offset
    crc = record.crc if record.nbytes == tensor.nbytes else 0
    return StoredItem(tensor, window.path, offset, window.version, crc)


def _values(archive: Archive, where: str) -> PlainValues:
    try:
        pickled = archive.small(PICKLE)
        node = read_pickle(pickled, PLAIN_NAMES, where)
    except CorruptError:
        raise
    except FormatError:
        return Unread("an object")
    if is_tensor(node):
        raise CorruptError(
            f"{where} holds a tensor, but the metadata lists another value; the files are not of one checkpoint"
        )
    return plain_values(node, most_parts(pickled))


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


Items = Mapping[ItemPlace, StoredItem]


class TiledTensor(Struct, frozen=True):
    """A tensor as chunks.

    Attributes:
        copies: the places of each piece that several ranks stored alike.
        crcs: CRC-32s of its pieces; None where one is not recorded.
    """

    dtype: str
    chunks: GatheredChunks
    copies: tuple[tuple[Extent, ...], ...]
    crcs: RecordCrcs | None


def tiled_tensor(entry: TensorEntry, items: Items, where: str) -> TiledTensor:
    """The chunks of a tensor; ``items``: the stored item at each place of a piece that is not empty.

    Raises CorruptError where pieces overlap, leave a hole, or contradict the metadata.
    """
    itemsize = storage_bytes(entry.dtype)
    if math.prod(entry.shape) * itemsize > MAX_TENSOR_BYTES:
        raise FormatError(f"{where}: {entry.name!r} has more than 2^62 bytes")
    files = {piece.box: piece.places[0].file for piece in entry.pieces}
    try:
        check_tiling(entry.name, entry.shape, list(files), lambda box: f"{box} of {files[box]}")
    except LayoutError as error:
        raise CorruptError(f"{where}: {error}") from None
    pieces = [_raw(piece, piece.places[0], entry, items) for piece in filled(entry)]
    crcs = RecordCrcs.of(pieces, [items[p.places[0]].crc for p in filled(entry)], itemsize)
    chunks = gathered_chunks(entry.shape, itemsize, pieces)
    return TiledTensor(entry.dtype, chunks, tuple(_copies(entry, items, itemsize)), crcs)


def filled(entry: TensorEntry) -> list[TensorPiece]:
    """The pieces that have elements."""
    return [piece for piece in entry.pieces if piece.box.size]


def _raw(piece: TensorPiece, place: ItemPlace, entry: TensorEntry, items: Items) -> RawPiece:
    stored = items[place]
    tensor = stored.tensor
    if (tensor.dtype, tensor.shape) != (entry.dtype, piece.box.shape):
        raise CorruptError(
            f"{stored.path}: the piece {piece.box} of {entry.name!r} should be {entry.dtype} of shape {list(piece.box.shape)}, but is "
            f"{tensor.dtype} of shape {list(tensor.shape)}; the files are not of one checkpoint"
        )
    return RawPiece(
        piece.box, stored.path, stored.offset, tensor.order, stored.version, tensor.strides
    )


def _copies(entry: TensorEntry, items: Items, itemsize: int) -> list[tuple[Extent, ...]]:
    return [
        same
        for piece in filled(entry)
        if len(same := _alike(piece, [_raw(piece, p, entry, items) for p in piece.places], itemsize)) > 1
    ]  # fmt: skip


def _alike(piece: TensorPiece, raw: Sequence[RawPiece], itemsize: int) -> tuple[Extent, ...]:
    """The places that have the elements in the order of the first, without gaps: only those can be compared byte by byte."""
    nbytes = piece.box.size * itemsize
    return tuple(
        Extent(one.path, one.offset, nbytes, version=one.version)
        for one in raw
        if one.order == raw[0].order and not one.strides
    )
