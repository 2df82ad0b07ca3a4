"""A fill of several pieces: the target chunks that they share are assembled from all of them, one read after the other."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from msgspec import Struct

from reshard.geometry.grid import Grid
from reshard.planning.cost import price
from reshard.planning.frame import Choice, Demand, best_halving, first_halving
from reshard.planning.task_memory import (
    SMALLEST_BAND_BYTES,
    TASK_BAND_BYTES,
    Draft,
    Pace,
    Reading,
    chunks_per_unit,
    decoded_bytes,
    task_bytes,
    touched_bytes,
)
from reshard.planning.tensor_plan import Fill, Price, Side


def joint_choice(demands: Sequence[Demand], memory: int) -> Choice:
    """One fill of all pieces of a tensor: units are boxes of the target, as large as ``memory`` allows, but at least one chunk."""
    target = demands[0].target
    units = Grid.whole(target.spec.shape) if target.in_order is None else target.in_order
    joint = _Joint.of(demands, units, memory)
    while joint.pace.task_bytes > memory and (halved := _halved(demands, joint.units)) is not None:
        joint = _Joint.of(demands, halved, memory)
    pieces, sources = tuple(r.piece for r in demands), tuple(r.source for r in demands)
    pace, cost = joint.pace, joint.price(target)
    fill = Fill(pieces, sources, target, "block", joint.units, pace.band_bytes, cost)
    return Choice((fill,), joint.units)


def _halved(demands: Sequence[Demand], units: Grid) -> Grid | None:
    """The units in halves; None if each is one chunk, or one part of a slice that is written in order."""
    target = demands[0].target
    if target.in_order is None:
        return best_halving(partial(_joint_bytes, demands), units, target.spec.storage)
    return first_halving(units, target.spec.storage)


class _Joint(Struct, frozen=True):
    """Pieces that are assembled together, a reading and a draft for each."""

    units: Grid
    readings: Sequence[Reading]
    drafts: Sequence[Draft]
    pace: Pace

    @classmethod
    def of(cls, demands: Sequence[Demand], units: Grid, memory: int) -> _Joint:
        readings = [_reading_of(demand, units) for demand in demands]
        drafts = [
            Draft("block", r.piece, r.source, r.target, reading.units)
            for r, reading in zip(demands, readings, strict=True)
        ]
        return cls(units, readings, drafts, _joint_pace(readings, drafts, units, memory))

    def price(self, target: Side) -> Price:
        """The cost of all pieces together; each chunk is written once."""
        prices = [price(d, r, self.pace) for d, r in zip(self.drafts, self.readings, strict=True)]
        return Price(
            self.units.count,
            sum(map(decoded_bytes, self.readings)),
            sum(map(touched_bytes, self.readings)),
            sum(p.written_bytes for p in prices),
            target.spec.storage.count * target.copies,
            self.pace.task_bytes,
            sum(p.seconds for p in prices),
        )


def _joint_pace(
    readings: Sequence[Reading], drafts: Sequence[Draft], units: Grid, memory: int
) -> Pace:
    """The pace of pieces read one after the other: a task needs the memory of the largest piece, and all of its target chunks."""
    target = drafts[0].target.spec
    chunks = chunks_per_unit(units, target.storage)

    def need(band: int) -> int:
        most = max(
            task_bytes(reading, [draft], band) - draft.chunks * target.chunk_bytes
            for reading, draft in zip(readings, drafts, strict=True)
        )
        return most + chunks * target.chunk_bytes

    band = TASK_BAND_BYTES
    while band > SMALLEST_BAND_BYTES and need(band) > memory:
        band //= 2
    return Pace(band, False, need(band))


def _reading_of(demand: Demand, units: Grid) -> Reading:
    """The reading of one of a target's pieces by units of the target."""
    piece = demand.piece
    grid = piece.source_grid(demand.source.spec.storage)
    start = piece.source_box.start
    return Reading(demand.source, grid, piece.target_grid(units), piece.source_view, start)


def _joint_bytes(demands: Sequence[Demand], units: Grid) -> int:
    return sum(decoded_bytes(_reading_of(demand, units)) for demand in demands)
