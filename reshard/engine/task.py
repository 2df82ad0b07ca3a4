"""Task: units of target tensors and the parts of sources that fill them; small frozen data that any process on any host can run.

None of these records can be in a cycle, so that Python's garbage collector skips them (``gc=False``): a run on many hosts
holds a million at once.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from reshard.answers.shared import Strategy
from reshard.checksums.sums import Count, Sums
from reshard.checksums.tensor_digest import PieceCrcs
from reshard.formats.contents import Encoding, SourceChunk
from reshard.formats.file_map import Place
from reshard.geometry.dtypes import element_dtype
from reshard.geometry.grid import Box, Grid, Index
from reshard.planning.piece import Piece

if TYPE_CHECKING:
    import numpy as np


class TargetChunk(Struct, frozen=True, gc=False):
    """A chunk to write, to each of its ``places``; it has none if a database stores it."""

    index: Index
    places: tuple[Place, ...]
    box: Box
    stored_shape: tuple[int, ...]


class Unit(Struct, frozen=True, gc=False):
    """A unit of a target tensor that a task fills.

    Attributes:
        target: number of the run's target that has the tensor.
        tensor: the tensor's number in the plan of that target.
        number: of this unit among the tensor's units.
        pieces: that have elements in it.
        chunks: every target chunk that it touches, in row-major order of ``grid``.
        box: of the target; several pieces, and all assembled chunks, lie in it whole.
        grid: the target's chunks within ``box``, counted from its start.
        shape: of the whole target tensor, for its digest.
    """

    target: int
    tensor: int
    number: int
    strategy: Strategy
    name: str
    dtype: str
    shape: tuple[int, ...]
    encoding: Encoding
    pieces: tuple[Piece, ...]
    chunks: tuple[TargetChunk, ...]
    box: Box
    grid: Grid

    @property
    def places(self) -> Iterator[Place]:
        """The places of its chunks."""
        return (place for chunk in self.chunks for place in chunk.places)


class Take(Struct, frozen=True, gc=False):
    """The part of a read that a unit takes: a box of one of its pieces.

    Attributes:
        unit, piece: indices in the task's units, and in the pieces of that unit.
        changes: true if source and target are not the same row-major bytes.
    """

    unit: int
    piece: int
    box: Box
    changes: bool


class SourceRead(Struct, frozen=True, gc=False):
    """A tensor that a task reads, or a part of it.

    Attributes:
        name, dtype, shape: of the source tensor; the name is "" if an element fills the target.
        encoding: of each chunk.
        fill: bytes of one element of a chunk that is not stored.
        chunks: in row-major order of the source's grid.
        box: the wanted part of the tensor.
        takes: the boxes that units take of it.
        is_recorded: true if the source recorded a digest of everything that is read. If the target has the same bytes,
            its digest is compared with that one, and the source's is not taken again.
        crcs: the checksums that the format recorded for the elements that are read; None if it recorded none.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    encoding: Encoding
    fill: bytes
    chunks: tuple[SourceChunk, ...]
    box: Box
    takes: tuple[Take, ...]
    is_recorded: bool = False
    crcs: PieceCrcs | None = None

    @property
    def stored_bytes(self) -> int:
        """Encoded bytes of its chunks."""
        return sum([chunk.extent.length for chunk in self.chunks if chunk.extent])


class Task(Struct, frozen=True, gc=False):
    """Fill ``units`` from ``reads``, one read after the other. Running it twice gives the same bytes.

    Attributes:
        band_bytes: decoded bytes that pass at once.
        at_once: true if source chunks are decoded whole, not in a stream.
        memory_bytes: memory that the plan allows this task.
        open_files: number of files of each target that it may have open at once.
        gathered_bytes: decoded bytes of turned bands that a unit gathers before it writes them; 0 if bands are written one by one.
    """

    reads: tuple[SourceRead, ...]
    units: tuple[Unit, ...]
    band_bytes: int
    memory_bytes: int
    open_files: int
    at_once: bool = False
    gathered_bytes: int = 0

    @property
    def strategy(self) -> Strategy:
        """The strategy of its first unit; either all units are copied, or all are moved whole, or none is."""
        return self.units[0].strategy


class CastStats(Struct, frozen=True):
    """The losses of a cast.

    Attributes:
        overflows: finite values that became infinite, or did not fit an integer.
        nans: NaNs in the source.
        largest_relative_error: over finite values that stayed finite and did not saturate; 0 if nothing was lost.
        saturated: values beyond the largest finite one, infinite ones too, that became that one.
    """

    overflows: Count = 0
    nans: Count = 0
    largest_relative_error: float = 0.0
    saturated: Count = 0

    def __add__(self, other: CastStats) -> CastStats:
        return CastStats(
            self.overflows + other.overflows,
            self.nans + other.nans,
            max(self.largest_relative_error, other.largest_relative_error),
            self.saturated + other.saturated,
        )


class StoredChunk(Struct, frozen=True, gc=False, array_like=True):
    """A chunk of a target as it is stored, or the part of it that one task stored. It encodes as the list of its fields.

    Attributes:
        crc32c: linear part of the CRC32C of the stored bytes, without a checksum that is stored with them; 0 for a chunk
            that was stored whole with a checksum.
        nbytes: bytes of the tensor (padding excluded) that were written.
        stored_bytes: size of the chunk as it is stored, trailer included, if it is finished; else None.
        versions: of the file at each of its places, if the store names versions and the file is complete now; else "".
    """

    index: tuple[Count, ...]
    crc32c: Count
    nbytes: Count
    stored_bytes: Count | None = None
    versions: tuple[str, ...] = ()


class Result(Struct, frozen=True, gc=False, array_like=True):
    """A unit that was filled, and its sums. It encodes as the list of its fields: a record of the journal.

    Attributes:
        tensor, unit: their numbers in the plan, and among the tensor's units.
        sums: of each piece that has elements in the unit.
        moved_bytes: bytes of the source's elements that were moved.
        read_bytes: encoded bytes of the chunks that were read; 0 if another unit of the target, filled from the same read,
            has them.
        target: number of the run's target.
    """

    tensor: Count
    unit: Count
    sums: tuple[Sums, ...]
    moved_bytes: Count
    read_bytes: Count
    chunks: tuple[StoredChunk, ...]
    cast: CastStats | None = None
    target: Count = 0


def source_element_type(piece: Piece) -> np.dtype[Any]:
    """The type in which source elements are viewed: their dtype for a cast, else integers that keep every bit."""
    return element_dtype(piece.source_dtype, is_cast=piece.is_computed)


def target_element_type(piece: Piece) -> np.dtype[Any]:
    """The type in which target elements are viewed."""
    return element_dtype(piece.target_dtype, is_cast=piece.is_computed)
