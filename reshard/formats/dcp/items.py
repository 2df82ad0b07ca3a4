"""Reads the items of a checkpoint: the place of a tensor's elements, or another value itself."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import closing
from itertools import islice
from typing import Literal

from msgspec import Struct

from reshard.errors import CorruptError, FormatError
from reshard.formats.dcp.entries import ItemPlace
from reshard.formats.dcp.item_files import ArchiveWindow, ItemFiles
from reshard.formats.pickle.interpreter import read_pickle
from reshard.formats.torch.archive import PICKLE, Archive, open_archive
from reshard.formats.torch.archived_tensor import (
    TENSOR_NAMES,
    ArchivedTensor,
    archived_tensor,
    is_tensor,
)
from reshard.formats.torch.plain_value import (
    PLAIN_NAMES,
    PlainValues,
    Unread,
    most_parts,
    plain_values,
)
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
