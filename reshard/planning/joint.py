"""A fill of several pieces: the target chunks that they share are assembled from all of them, one read after the other."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from msgspec import Struct

from reshard.geometry.grid import Grid
from reshard.planning.cost import price
from reshard.planning.read_box import SharedRead, WantedPiece, best_halving, first_halving
from reshard.planning.task_memory import (
    SMALLEST_BAND_BYTES,
    TASK_BAND_BYTES,
    Reading,
    TaskBuffers,
    UnpricedFill,
    chunks_per_unit,
    decoded_bytes,
    task_bytes,
    touched_bytes,
)
from reshard.planning.tensor_plan import Fill, Price, Side


def joint_read(wanted_pieces: Sequence[WantedPiece], memory: int) -> SharedRead:
    """One fill of all pieces of a tensor: units are boxes of the target, as large as ``memory`` allows, but at least one chunk."""
    target = wanted_pieces[0].target
    units = Grid.whole(target.spec.shape) if target.in_order is None else target.in_order
    joint = _Joint.of(wanted_pieces, units, memory)
    while (
        joint.buffers.task_bytes > memory
        and (halved := _halved(wanted_pieces, joint.units)) is not None
    ):
        joint = _Joint.of(wanted_pieces, halved, memory)
    pieces, sources = tuple(r.piece for r in wanted_pieces), tuple(r.source for r in wanted_pieces)
    buffers, cost = joint.buffers, joint.price(target)
    fill = Fill(pieces, sources, target, "block", joint.units, buffers.band_bytes, cost)
    return SharedRead((fill,), joint.units)


def _halved(wanted_pieces: Sequence[WantedPiece], units: Grid) -> Grid | None:
    """The units in halves; None if each is one chunk, or one part of a slice that is written in order."""
    target = wanted_pieces[0].target
    if target.in_order is None:
        return best_halving(partial(_joint_bytes, wanted_pieces), units, target.spec.storage)
    return first_halving(units, target.spec.storage)


class _Joint(Struct, frozen=True):
    """Pieces that are assembled together, a reading and an unpriced fill for each."""

    units: Grid
    readings: Sequence[Reading]
    unpriced: Sequence[UnpricedFill]
    buffers: TaskBuffers

    @classmethod
    def of(cls, wanted_pieces: Sequence[WantedPiece], units: Grid, memory: int) -> _Joint:
        readings = [_reading_of(wanted, units) for wanted in wanted_pieces]
        unpriced = [
            UnpricedFill("block", r.piece, r.source, r.target, reading.units)
            for r, reading in zip(wanted_pieces, readings, strict=True)
        ]
        return cls(units, readings, unpriced, _joint_buffers(readings, unpriced, units, memory))

    def price(self, target: Side) -> Price:
        """The cost of all pieces together; each chunk is written once."""
        prices = [
            price(d, r, self.buffers) for d, r in zip(self.unpriced, self.readings, strict=True)
        ]
        return Price(
            self.units.count,
            sum(map(decoded_bytes, self.readings)),
            sum(map(touched_bytes, self.readings)),
            sum(p.written_bytes for p in prices),
            target.spec.storage.count * target.copies,
            self.buffers.task_bytes,
            sum(p.seconds for p in prices),
        )


def _joint_buffers(
    readings: Sequence[Reading], unpriced: Sequence[UnpricedFill], units: Grid, memory: int
) -> TaskBuffers:
    """The pace of pieces read one after the other: a task needs the memory of the largest piece, and all of its target chunks."""
    target = unpriced[0].target.spec
    chunks = chunks_per_unit(units, target.storage)

    def need(band: int) -> int:
        most = max(
            task_bytes(reading, [fill], band) - fill.chunks * target.chunk_bytes
            for reading, fill in zip(readings, unpriced, strict=True)
        )
        return most + chunks * target.chunk_bytes

    band = TASK_BAND_BYTES
    while band > SMALLEST_BAND_BYTES and need(band) > memory:
        band //= 2
    return TaskBuffers(band, False, need(band))


def _reading_of(wanted: WantedPiece, units: Grid) -> Reading:
    """The reading of one of a target's pieces by units of the target."""
    piece = wanted.piece
    grid = piece.source_grid(wanted.source.spec.storage)
    start = piece.source_box.start
    return Reading(wanted.source, grid, piece.target_grid(units), piece.source_view, start)


def _joint_bytes(wanted_pieces: Sequence[WantedPiece], units: Grid) -> int:
    return sum(decoded_bytes(_reading_of(wanted, units)) for wanted in wanted_pieces)
