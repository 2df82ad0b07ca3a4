"""The content of a TensorFlow checkpoint beside arrays of numbers: strings, which are read, and others, which are only named.

A string without dimensions that is text is a leaf of text, as in other formats. Other strings have no place in them: they are carried to
targets of TensorFlow, where they are stored whole, whatever slices they were in.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from msgspec.structs import replace

from reshard.errors import CorruptError, LayoutError
from reshard.formats.contents import Carried, CarriedPart, Extent, Leaf, PathKey
from reshard.formats.tensorflow.files import FORMAT, DataFile
from reshard.formats.tensorflow.index import OTHER_DTYPES, STRING, BundleEntry, IndexEntry, box_of
from reshard.formats.tensorflow.object_graph import HELD_GRAPH, MOST_GRAPH_BYTES
from reshard.formats.tensorflow.strings import HELD, STRING_MEMORY, read_strings, stored_strings
from reshard.geometry.grid import Box
from reshard.geometry.tiling import check_tiling

MOST_TEXT_BYTES = 1 << 20
"""A longer string is no text that a leaf holds."""

MOST_STRINGS, MOST_STRING_BYTES = 1 << 22, 256 << 20
"""Of a tensor; its strings are in memory together."""

MOST_READ_BYTES = 256 << 20
"""Strings that opening reads: texts, and those in slices, whose kind shows once they are joined."""


class OtherLeaves:
    """Makes the leaves that are no arrays of numbers.

    Attributes:
        memory_bytes: memory of the largest string tensor while it is read.
    """

    def __init__(self, files: Sequence[DataFile], where: str) -> None:
        self.memory_bytes = 0
        self._files, self._where = files, where
        self._left = MOST_READ_BYTES

    def leaf(self, name: str, path: tuple[PathKey, ...], found: IndexEntry) -> Leaf:
        """The leaf of a tensor. Raises CorruptError for strings that are damaged, or whose slices do not tile their tensor."""
        entry = found.entry
        stored = [entry, *(one.entry for one in found.slices)]
        digest = " ".join(f"{one.crc32c:08x}" for one in stored)
        meta = {"object": _kind(entry), "digest": digest}
        unread = Leaf(name, path, tensor=False, meta=meta)
        if entry.dtype != STRING:
            return unread
        carried = self._carried(found)
        nbytes = sum(part.extent.length for part in carried.parts)
        if nbytes > MOST_STRING_BYTES or math.prod(entry.shape) > MOST_STRINGS:
            return unread
        is_text = not entry.shape and nbytes <= MOST_TEXT_BYTES
        crc = entry.crc32c
        if is_text or found.slices or not nbytes:  # of no strings, nothing or a checksum is stored
            if nbytes > self._left:
                return unread
            self._left -= nbytes
            strings = read_strings(carried, repr(found.key))
            if is_text and (text := _text(strings.data)) is not None:
                return Leaf(name, path, tensor=False, meta={"string": text})
            _, crc = stored_strings(strings)
        self.memory_bytes = max(
            self.memory_bytes, HELD * nbytes + STRING_MEMORY * math.prod(entry.shape)
        )
        digest = f"{'x'.join(map(str, entry.shape))} {crc:08x}".strip()
        known = meta | {"digest": digest, "carried": replace(carried, crc=crc)}
        return Leaf(name, path, tensor=False, meta=known)

    def graph(self, found: IndexEntry) -> Carried | None:
        """The place of the object graph; None for one that no target keeps: too large, or no message."""
        entry = found.entry
        if entry.dtype != STRING or entry.shape or found.slices or entry.nbytes > MOST_GRAPH_BYTES:
            return None
        self.memory_bytes = max(self.memory_bytes, HELD_GRAPH * entry.nbytes)
        return self._carried(found)

    def _carried(self, found: IndexEntry) -> Carried:
        shape = found.entry.shape
        boxes = [box_of(one.extents, shape) for one in found.slices] or [Box.full(shape)]
        entries = [one.entry for one in found.slices] or [found.entry]
        try:
            check_tiling(found.key, shape, boxes)
        except LayoutError as error:
            raise CorruptError(f"{self._where}: {error}") from None
        parts = (
            self._part(found.key, entry, box) for entry, box in zip(entries, boxes, strict=True)
        )
        return Carried(FORMAT, tuple(parts), shape)

    def _part(self, key: str, entry: BundleEntry, box: Box) -> CarriedPart:
        if box.size > entry.nbytes:
            raise CorruptError(
                f"{self._where}: {key!r} has {box.size:,} strings at {box}, but {entry.nbytes:,} bytes are stored; restore the checkpoint "
                "from a copy"
            )
        file = file_of(key, entry, self._files, self._where)
        extent = Extent(file.path, entry.offset, entry.nbytes, version=file.found.version)
        return CarriedPart(extent, box, entry.crc32c)


def file_of(key: str, entry: BundleEntry, files: Sequence[DataFile], where: str) -> DataFile:
    """The data file of an entry. Raises CorruptError where it has not all of its bytes."""
    if entry.data_file >= len(files):
        raise CorruptError(
            f"{where}: {key!r} is in data file {entry.data_file}, counted from 0, but the index counts {len(files)}; restore the file from "
            "a copy"
        )
    file = files[entry.data_file]
    end = entry.offset + entry.nbytes
    if end > file.found.nbytes:
        raise CorruptError(
            f"{file.path} has {file.found.nbytes} bytes, but {key!r} ends at {end}; it was cut short: restore it from a copy"
        )
    return file


def _text(data: bytes) -> str | None:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return None  # bytes, such as a message


def _kind(entry: BundleEntry) -> str:
    """The content of a tensor that is no array of numbers, in words."""
    count, more = math.prod(entry.shape), "s" * (math.prod(entry.shape) != 1)
    name = OTHER_DTYPES.get(entry.dtype, f"dtype {entry.dtype} of TensorFlow")
    if entry.dtype == STRING:
        return "bytes" if not entry.shape else f"{count:,} string{more}"
    return f"{count:,} element{more} of {name}"
