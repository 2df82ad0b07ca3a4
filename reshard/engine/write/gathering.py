"""Gathers turned bands in the order of the target, and writes them once the runs of the target's rows are long.

The rows of a turned target lie across those of the source, so that a band has a short run of each. Written at once, they are many: the
kernel takes three times as long for runs of 8 KiB as for runs of 64 KiB. So bands stay small, in the processor's cache, and those that
follow one another are gathered. They are written and summed up in parts, from the memory that was written, each while the cache has it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec import Struct
from msgspec.structs import replace

from reshard.engine.task import StoredChunk, Task, target_element_type
from reshard.engine.write.sinks import PieceSink
from reshard.geometry.dtypes import storage_bytes
from reshard.geometry.grid import Box
from reshard.geometry.row_major import pieces
from reshard.planning.piece import Piece
from reshard.planning.task_cost import is_turned

if TYPE_CHECKING:
    import numpy.typing as npt

    from reshard.engine.buffers import Bytes
    from reshard.engine.decode.source_bands import Interleaved

    Array = npt.NDArray[Any]

PART_BYTES = 1 << 20
"""Bytes that are written and summed up at once: they stay in the cache of a core."""


def wanted_box(task: Task, unit: int) -> Box:
    """The box that a unit takes of its piece."""
    return next(take.box for read in task.reads for take in read.takes if take.unit == unit)


def gathered_bytes(task: Task, number: int) -> int:
    """Bytes of the memory in which a unit gathers bands; 0 if it does not."""
    unit = task.units[number]
    piece = unit.pieces[0]
    if unit.strategy != "scatter" or not task.gathered_bytes or not is_turned(piece):
        return 0
    itemsize = storage_bytes(piece.source_dtype)
    elements = min(task.gathered_bytes // itemsize, wanted_box(task, number).size)
    return elements * storage_bytes(unit.dtype)


class _Gathered(Struct, frozen=True):
    """Bands of a piece that follow one another along a dimension.

    Attributes:
        box: of the piece, that was gathered.
        room: the box, around it, for which there is memory.
        dim: of the piece, along which the bands lie.
        place: of ``room`` in the target.
        elements: at ``place``.
    """

    piece: Piece
    box: Box
    room: Box
    dim: int
    place: Box
    elements: Array

    @classmethod
    def of(cls, piece: Piece, box: Box, wanted: Box, memory: Bytes) -> _Gathered | None:
        """A first band of the ``wanted`` box; None if memory has no room for it, or the target's elements lie apart."""
        sizes = zip(box.shape, wanted.shape, strict=True)
        dim = max((d for d, (own, whole) in enumerate(sizes) if own != whole), default=0)
        dtype = target_element_type(piece)
        row = box.size // box.shape[dim] * dtype.itemsize
        stop = min(box.start[dim] + len(memory) // row, wanted.stop[dim])
        room = _along(box, dim, box.start[dim], stop)
        place = piece.to_target(room)
        if stop < box.stop[dim] or place.size != room.size:
            return None
        elements = memory[: room.size * dtype.itemsize].view(dtype).reshape(place.shape)
        return cls(piece, box, room, dim, place, elements)

    def with_band(self, piece: Piece, box: Box) -> _Gathered | None:
        """The same with one more band; None if it does not follow, or has no room."""
        start, stop = self.box.stop[self.dim], box.stop[self.dim]
        follows = piece is self.piece and box == _along(self.box, self.dim, start, stop)
        if not follows or stop > self.room.stop[self.dim]:
            return None
        return replace(self, box=_along(self.box, self.dim, self.box.start[self.dim], stop))


def _along(box: Box, dim: int, start: int, stop: int) -> Box:
    """The box with other ends along a dimension."""
    return Box(
        (*box.start[:dim], start, *box.start[dim + 1 :]),
        (*box.stop[:dim], stop, *box.stop[dim + 1 :]),
    )


class GatheringSink(PieceSink):
    """A PieceSink of turned bands."""

    _gathered: _Gathered | None = None

    def gather_in(self, memory: Bytes, wanted: Box) -> None:
        """Takes memory for bands that follow one another within the ``wanted`` box of the piece."""
        self._memory = memory
        self._wanted = wanted

    def put(self, piece: Piece, band: Array | Interleaved, box: Box) -> None:
        """Gathers a band at ``box`` of a piece; writes those before it unless it follows them."""
        gathered = None if self._gathered is None else self._gathered.with_band(piece, box)
        if gathered is None:
            self._write_gathered()
            gathered = _Gathered.of(piece, box, self._wanted, self._memory)
        if gathered is None:
            super().put(piece, band, box)
            return
        target = piece.to_target(box)
        for slot in self.chunk_slots.slots_of(piece, box):
            place = self.place(slot, target).relative_to(gathered.place.start)
            self.copy(piece, band, slot.in_band, gathered.elements[place.slices])
        self._gathered = gathered

    def close(self) -> list[StoredChunk]:
        """Writes what was gathered last, and finishes as a PieceSink does."""
        self._write_gathered()
        return super().close()

    def _write_gathered(self) -> None:
        gathered, self._gathered = self._gathered, None
        if gathered is None:
            return
        whole = gathered.piece.to_target(gathered.box)
        most = min(PART_BYTES, len(self._scratch)) // self.dtype.itemsize
        for part in pieces(Box.full(whole.shape), whole.shape, most):
            place, at = part.shift(whole.start), 0
            elements = gathered.elements[place.relative_to(gathered.place.start).slices]
            self._written.clear()
            for slot in self.chunk_slots.slots(place):
                data = self._contiguous(elements[slot.in_band], at)
                self._write(data, slot, place)
                at += data.nbytes
            self.add_digest(self._written, place)

    def _contiguous(self, elements: Array, at: int) -> Array:
        """The elements as they are written: themselves, or a copy in the scratch memory from ``at`` on."""
        if elements.flags.c_contiguous:
            return elements
        out: Array = self._scratch[at : at + elements.nbytes].view(self.dtype)
        out = out.reshape(elements.shape)
        out[...] = elements
        return out
