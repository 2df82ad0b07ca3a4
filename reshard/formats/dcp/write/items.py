"""The items of one file of a target: archives at multiples of 64, one behind the other, with zeros between them.

One insert is between the elements of two tensors: the end of an archive, which has the CRC-32 of its elements, zeros, and
the beginning of the next. torch packs items without zeros, and reads both.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import pairwise

from msgspec import Struct

from reshard.checksums.crc import CRC32
from reshard.formats.file_map import Insert, SharedFile, StoredRanges
from reshard.formats.torch.write_archive import (
    ALIGNMENT,
    archive_head,
    archive_of,
    archive_tail,
    elements_start,
)
from reshard.formats.torch.write_tensor import tensor_pickle
from reshard.geometry.dtypes import storage_bytes
from reshard.geometry.grid import Box


class TensorItem(Struct, frozen=True):
    """The archive of a slice of a tensor.

    Attributes:
        at: its offset in the file.
        start: offset of its first element in the file.
    """

    dtype: str
    shape: tuple[int, ...]
    elements_bytes: int
    at: int
    start: int

    @property
    def pickle(self) -> bytes:
        return tensor_pickle(self.dtype, self.shape)

    @property
    def head(self) -> bytes:
        """The bytes before the elements."""
        return archive_head(self.pickle, self.elements_bytes)

    @property
    def elements_end(self) -> int:
        """Offset behind the last element in the file."""
        return self.start + self.elements_bytes

    def tail(self, crc: int) -> bytes:
        """The bytes behind the elements, by their CRC-32."""
        return archive_tail(self.pickle, self.elements_bytes, crc)

    @property
    def nbytes(self) -> int:
        """The size of the whole archive."""
        return self.elements_end - self.at + len(self.tail(0))


def next_item(dtype: str, box: Box, end: int) -> TensorItem:
    """The item of a slice, behind the bytes of a file that end at ``end``."""
    at = end + -end % ALIGNMENT
    nbytes = box.size * storage_bytes(dtype)
    start = at + elements_start(tensor_pickle(dtype, box.shape), nbytes)
    return TensorItem(dtype, box.shape, nbytes, at, start)


def items_file(first: int, items: Sequence[TensorItem]) -> SharedFile:
    """The file of these items; chunks that no archive holds are in its first ``first`` bytes."""
    if not items:
        return SharedFile(b"", first)
    inserts = [Insert(first, items[0].start - first, partial(_beginning, first, items[0]))]
    for item, following in pairwise(items):
        begin = item.elements_end
        inserts.append(Insert(begin, following.start - begin, partial(_between, item, following)))
    last = items[-1]
    nbytes = last.at + last.nbytes
    inserts.append(Insert(last.elements_end, nbytes - last.elements_end, partial(_end, last)))
    return SharedFile(b"", nbytes, tuple(inserts), CRC32)


def values_file(pickles: Sequence[bytes]) -> tuple[bytes, list[tuple[int, int]]]:
    """A file of items without tensors, and the offset and the length of each."""
    content, places = bytearray(), []
    for pickle in pickles:
        content += bytes(-len(content) % ALIGNMENT)
        archive = archive_of(pickle)
        places.append((len(content), len(archive)))
        content += archive
    return bytes(content), places


def _beginning(first: int, item: TensorItem, _: StoredRanges) -> bytes:
    return bytes(item.at - first) + item.head


def _between(item: TensorItem, following: TensorItem, stored: StoredRanges) -> bytes:
    tail = _end(item, stored)
    return tail + bytes(following.at - item.elements_end - len(tail)) + following.head


def _end(item: TensorItem, stored: StoredRanges) -> bytes:
    return item.tail(stored.crc(item.start, item.elements_bytes))
