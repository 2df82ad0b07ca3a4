"""Task: one unit of a move, as small frozen data that any process on any host can run.

None of these records can be in a cycle, so Python's garbage collector need not look at them (``gc=False``): a run on many hosts
holds a million at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec import Struct, field

from reshard.formats.contents import Encoding, Extent
from reshard.formats.file_map import Place
from reshard.geometry.box import Box
from reshard.geometry.dtypes import element_dtype
from reshard.geometry.grid import Grid, Index
from reshard.planning.move import Strategy
from reshard.planning.placement import Placement

if TYPE_CHECKING:
    import numpy as np

    from reshard.formats.base import Reader
    from reshard.layout.tensor_spec import TensorSpec


class SourceChunk(Struct, frozen=True, gc=False):
    """A chunk to read.

    Attributes:
        extent: where it lies encoded, or None where it is not stored and holds the fill value.
        box: the elements of the source tensor that it holds, padding excluded.
        stored_shape: its shape with padding.
    """

    index: Index
    extent: Extent | None
    box: Box
    stored_shape: tuple[int, ...]

    @classmethod
    def at(cls, index: Index, spec: TensorSpec, reader: Reader) -> SourceChunk:
        """The chunk at ``index`` of a tensor; CorruptError where it is missing and must not be."""
        extent = reader.locate(spec.name, index)
        return cls(index, extent, spec.storage.box(index), spec.stored_shape(index))


class TargetChunk(Struct, frozen=True, gc=False):
    """A chunk to write, to each of its ``places``; it has none if a database stores it."""

    index: Index
    places: tuple[Place, ...]
    box: Box
    stored_shape: tuple[int, ...]


class Task(Struct, frozen=True, gc=False):
    """Fill ``unit`` of a placement: read ``sources``, write ``targets``.

    Running it twice gives the same bytes. ``sources`` and ``targets`` are in row-major order of
    their grids; ``target_grid`` cuts the unit, in coordinates counted from its start.

    Attributes:
        move: index of the move in its plan.
        unit: box in the placement's coordinates.
        target_shape: shape of the whole target tensor, for its digest.
        band_bytes: decoded bytes that pass at once.
        at_once: whether source chunks are decoded whole, not in a stream.
        fill: bytes of one element of a source chunk that is not stored.
        memory_bytes: what the plan allows this task.
        open_files: target files that it may have open at once.
        unit_number: which of the move's units this is, row-major.
        target: which of the run's targets it fills.
        beside: tasks that fill the same unit of other targets from the same read of ``sources``.
        is_recorded: whether the source recorded a digest of everything that the move reads. Where the target has
            the same bytes, its digest is compared with that one, and the source's is not taken again.
    """

    move: int
    strategy: Strategy
    placement: Placement
    unit: Box
    sources: tuple[SourceChunk, ...]
    source_encoding: Encoding
    fill: bytes
    targets: tuple[TargetChunk, ...]
    target_grid: Grid
    target_encoding: Encoding
    target_shape: tuple[int, ...]
    band_bytes: int
    memory_bytes: int
    open_files: int
    at_once: bool = False
    unit_number: int = 0
    target: int = 0
    beside: tuple[Task, ...] = ()
    is_recorded: bool = False

    @property
    def all(self) -> tuple[Task, ...]:
        """This task and those beside it."""
        return (self, *self.beside)


class CastStats(Struct, frozen=True):
    """What a cast lost.

    Attributes:
        overflows: finite values that became infinite, or did not fit an integer.
        nans: NaNs in the source.
        largest_relative_error: over finite values that stayed finite and did not saturate; 0 where nothing was lost.
        saturated: values beyond the largest finite one, infinite ones too, that became that one.
    """

    overflows: int = 0
    nans: int = 0
    largest_relative_error: float = 0.0
    saturated: int = 0

    def __add__(self, other: CastStats) -> CastStats:
        return CastStats(
            self.overflows + other.overflows,
            self.nans + other.nans,
            max(self.largest_relative_error, other.largest_relative_error),
            self.saturated + other.saturated,
        )


class ChunkPart(Struct, frozen=True, gc=False):
    """The contribution of a task to one target chunk.

    Attributes:
        crc32c: linear contribution to the CRC32C of the chunk's stored bytes without their checksum; 0 for a chunk that
            was stored whole with a checksum.
        nbytes: bytes of the tensor (padding excluded) that were written.
        stored_bytes: size of the chunk as it is stored, trailer included, where it is finished; else None.
        versions: of the file at each of its places, where the store names versions and the file is complete now; else "".
    """

    index: Index
    crc32c: int
    nbytes: int
    stored_bytes: int | None = None
    versions: tuple[str, ...] = ()


class TaskResult(Struct, frozen=True, gc=False):
    """The result of a task.

    Attributes:
        source_crc: linear contribution to the digest of the placement's box of the source; where the source
            recorded a digest, the contribution to the target's.
        target_crc: linear contribution to the digest of the target tensor.
        moved_bytes: bytes of the source's elements that were moved.
        read_bytes: encoded bytes of the chunks that were read.
        has_digest: False where chunks travelled encoded and no element was seen.
        expected_crc: the ``target_crc`` that is correct, where it is not ``source_crc``: after a cast, or where
            elements change their order.
        source_cover: sum over the boxes that were read, in the placement's coordinates (see ``coverage``).
        target_cover: sum over the boxes that were written, in the target's.
    """

    move: int
    source_crc: int
    target_crc: int
    moved_bytes: int
    read_bytes: int
    parts: tuple[ChunkPart, ...]
    cast: CastStats = field(default_factory=CastStats)
    has_digest: bool = True
    expected_crc: int | None = None
    source_cover: int = 0
    target_cover: int = 0


class Finished(Struct, frozen=True, gc=False):
    """A finished task: the unit of the move that it filled, row-major, and its result.

    Attributes:
        target: of which of the run's targets.
        host: that did it, where its kernel is another than the run's; else "".
    """

    unit: int
    result: TaskResult
    target: int = 0
    host: str = ""


def source_element_type(task: Task) -> np.dtype[Any]:
    """What source elements are viewed as: their dtype for a cast, else integers that keep every bit."""
    return element_dtype(task.placement.source_dtype, is_cast=task.placement.is_cast)


def target_element_type(task: Task) -> np.dtype[Any]:
    """What target elements are viewed as."""
    return element_dtype(task.placement.target_dtype, is_cast=task.placement.is_cast)
