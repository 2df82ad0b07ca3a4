"""The places and the compression of the chunks of an HDF5 dataset.

h5py reads the index of chunks. The engine then reads and decodes them as it does those of any format: side by side, with sizes that are
checked; HDF5's own filter would take as much memory as a chunk claims to need. Read are chunks that are plain, or compressed by gzip
(deflate), with or without shuffle before it.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from reshard.errors import CorruptError, FormatError
from reshard.formats.contents import Encoding
from reshard.formats.limits import MAX_CHUNKS, MAX_TENSOR_BYTES
from reshard.geometry.dtypes import storage_bytes
from reshard.geometry.grid import MAX_PARTS, Grid, Index, row_major_number

if TYPE_CHECKING:
    from h5py.h5d import DatasetID
    from h5py.h5p import PropDCID

REPACK = "rewrite the file with 'h5repack -l CONTI -f NONE OLD NEW', or load it with Keras and save it again"

CHUNK_BYTES = 16
"""Memory of the place of a chunk: its offset and its length."""

_CUT_BYTES = 40
"""Memory of an edge of the grid, a number of Python and its place."""

_DEFLATE, _SHUFFLE = 1, 2
"""The numbers of filters in HDF5."""

_LEVELS = range(10)


class ChunkTable(Struct, frozen=True):
    """The chunks of a dataset.

    Attributes:
        shape: of a chunk, padding included.
        places: offset and length of each, in row-major order.
    """

    grid: Grid
    shape: tuple[int, ...]
    encoding: Encoding
    places: Sequence[int]

    @property
    def memory_bytes(self) -> int:
        """The memory of the places, and of the cuts of the grid."""
        return CHUNK_BYTES * self.grid.count + _CUT_BYTES * sum(map(len, self.grid.cuts))

    def place(self, index: Index) -> tuple[int, int]:
        """Offset and length of a chunk in the file."""
        at = 2 * self.grid.number_of(index)
        return self.places[at], self.places[at + 1]


def read_chunk_table(
    found: DatasetID, what: str, dtype: str, shape: tuple[int, ...], file_bytes: int
) -> ChunkTable:
    """The chunks of an open dataset; ``what`` names it in errors.

    Raises FormatError for other filters and for chunks that were never written, CorruptError for chunks that cannot be.
    """
    made = found.get_create_plist()
    encoding = _encoding(made, what, dtype, len(shape))
    chunk = tuple(map(int, made.get_chunk()))
    nbytes = math.prod(chunk) * storage_bytes(dtype)
    parts = [-(-size // step) for size, step in zip(shape, chunk, strict=True)]
    count = math.prod(parts)
    if count > MAX_CHUNKS or max(parts) > MAX_PARTS or nbytes > MAX_TENSOR_BYTES:
        raise FormatError(f"{what} is stored in more or larger chunks than are read; {REPACK}")
    places = _places(found, chunk, parts, what, file_bytes)
    table = ChunkTable(Grid.regular(shape, chunk), chunk, encoding, places)
    _check_places(table, what, nbytes)
    return table


def _encoding(made: PropDCID, what: str, dtype: str, rank: int) -> Encoding:
    filters = [made.get_filter(number) for number in range(made.get_nfilters())]
    numbers = [one[0] for one in filters]
    if not filters:
        return Encoding()
    # Shuffle alone is refused: chunks at the edge may lack it, and nothing in their bytes shows that.
    if numbers not in ([_DEFLATE], [_SHUFFLE, _DEFLATE]):
        names = ", ".join(one[3].decode(errors="replace") or f"filter {one[0]}" for one in filters)
        raise FormatError(
            f"{what} is stored in chunks with filters ({names}), and only gzip (deflate) is read, with or without shuffle before it; "
            f"{REPACK}"
        )
    values = filters[-1][2]
    level = values[0] if values and values[0] in _LEVELS else None
    itemsize = storage_bytes(dtype)
    if numbers == [_DEFLATE]:
        return Encoding("zlib", level)
    if tuple(filters[0][2])[:1] != (itemsize,):
        raise CorruptError(
            f"{what} has elements of {itemsize} bytes, but its filter shuffle says otherwise; restore the file from a copy"
        )
    order = (rank, *range(rank)) if itemsize > 1 else ()
    return Encoding("zlib", level, axis_order=order)


def _places(
    found: DatasetID, chunk: Sequence[int], parts: Sequence[int], what: str, file_bytes: int
) -> Sequence[int]:
    places = array("q", bytes(CHUNK_BYTES * math.prod(parts)))
    wrong = damage = ""

    def take(one: Any) -> str | None:
        """Takes one chunk. It never raises, since HDF5 calls it: a text ends its walk."""
        nonlocal wrong, damage
        index = [start // step for start, step in zip(one.chunk_offset, chunk, strict=True)]
        if any(at >= most for at, most in zip(index, parts, strict=True)):
            wrong = f"{what} has a chunk at {list(one.chunk_offset)}, outside of it"
        elif one.filter_mask:
            wrong = f"{what} has a chunk at {list(one.chunk_offset)} without some of its filters"
        elif (
            not one.byte_offset
        ):  # the file itself begins there; None is an address that HDF5 calls undefined
            damage = f"{what} has a chunk without a place in the file; restore the file from a copy"
        elif one.byte_offset + one.size > file_bytes:
            end = one.byte_offset + one.size
            damage = f"{what} has a chunk that ends at {end:,}, but the file has {file_bytes:,} bytes; it was cut short: restore it from a copy"
        else:
            at = 2 * row_major_number(index, parts)
            wrong = f"{what} has two chunks at {list(one.chunk_offset)}" if places[at + 1] else ""
            places[at], places[at + 1] = one.byte_offset, one.size
        return wrong or damage or None

    found.chunk_iter(take)
    if damage:
        raise CorruptError(damage)
    if wrong:
        raise FormatError(f"{wrong}, which is not read; {REPACK}")
    return places


def _check_places(table: ChunkTable, what: str, nbytes: int) -> None:
    lengths = table.places[1::2]
    written = sum(map(bool, lengths))
    if written < len(lengths):
        raise FormatError(
            f"{what} has {len(lengths):,} chunks, of which {written:,} were written; write them all, or leave it out when the file is made"
        )
    if table.encoding.compressor == "none" and set(lengths) != {nbytes}:
        raise CorruptError(
            f"{what} has a chunk of another size than {nbytes:,} bytes; restore the file from a copy"
        )
