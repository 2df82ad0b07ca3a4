"""MultiPlan: one plan for each of several targets, and the reads that their fills share."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from msgspec import Struct

from reshard.geometry.box import Box
from reshard.geometry.grid import Grid
from reshard.geometry.view import View
from reshard.planning.tensor_plan import Fill, Plan, Price, around, peak_of


class FillAt(Struct, frozen=True, gc=False):
    """One fill: number ``fill`` of tensor number ``tensor`` in the plan of target number ``target``."""

    target: int
    tensor: int
    fill: int = 0


class Read(Struct, frozen=True, gc=False):
    """Fills whose units are filled together, each source chunk decoded once for all of them.

    Either each fill has one piece, all of one tensor in one view; or there is one fill of several pieces.

    Attributes:
        box: the elements that are read, in the source's view; for several pieces, the box of the target that is filled.
        units: boxes of it, counted from its start. One task reads each for all fills that need it.
    """

    fills: tuple[FillAt, ...]
    box: Box
    units: Grid

    @classmethod
    def of(cls, places: Sequence[FillAt], fills: Sequence[Fill], units: Grid) -> Read:
        """Fills at these places that share units."""
        first = fills[0]
        box = first.box if first.is_joint else around([fill.piece.source_box for fill in fills])
        return cls(tuple(places), box, units)


class MultiPlan(Struct, frozen=True):
    """Plans for several targets of one source, carried out in one run.

    Attributes:
        reads: groups of fills that one decoding serves. They share units, band and the memory of a task.
    """

    plans: tuple[Plan, ...]
    reads: tuple[Read, ...]

    @classmethod
    def alone(cls, plan: Plan) -> MultiPlan:
        """The plan of a single target whose fills share no read."""
        return cls(
            (plan,),
            tuple(
                Read.of([FillAt(0, number, of)], [fill], fill.units)
                for number, tensor in enumerate(plan.tensors)
                for of, fill in enumerate(tensor.fills)
            ),
        )

    def fill(self, at: FillAt) -> Fill:
        return self.plans[at.target].tensors[at.tensor].fills[at.fill]

    def price(self, read: Read) -> Price:
        """The cost of reading, which is in the price of the first fill."""
        return self.fill(read.fills[0]).price

    @property
    def max_memory(self) -> int:
        """Bytes that all buffers of the run together may take."""
        return self.plans[0].max_memory

    @property
    def workers(self) -> int:
        return self.plans[0].workers

    @property
    def processes(self) -> int:
        return self.plans[0].processes

    @property
    def tasks(self) -> int:
        return sum(read.units.count for read in self.reads)

    @property
    def decoded_bytes(self) -> int:
        """Bytes decoded from source chunks, for all targets together."""
        return sum(self.price(read).decoded_bytes for read in self.reads)

    @property
    def source_bytes(self) -> int:
        """Bytes of the source chunks that any target needs. A chunk counts once, unless several boxes of its tensor touch it."""
        total = 0
        boxes: dict[tuple[int, str], dict[tuple[View | None, Box], int]] = defaultdict(dict)
        stored: dict[tuple[int, str], int] = {}
        for fill in self._leading():
            piece, nbytes = fill.piece, fill.price.source_bytes
            if fill.is_joint:
                total += nbytes
            else:
                boxes[piece.key][piece.source_view, piece.source_box] = nbytes
                stored[piece.key] = fill.source.spec.stored_bytes
        # Several boxes of a tensor may touch the same chunks, but never more than all chunks.
        return total + sum(min(sum(of.values()), stored[key]) for key, of in boxes.items())

    @property
    def repeated_bytes(self) -> int:
        """Bytes that are read and decoded again, because the memory is too small or because it is cheaper."""
        return self.decoded_bytes - self.source_bytes

    @property
    def amplification(self) -> float:
        return self.decoded_bytes / self.source_bytes if self.source_bytes else 1.0

    @property
    def written_bytes(self) -> int:
        return sum(plan.written_bytes for plan in self.plans)

    @property
    def peak_bytes(self) -> int:
        """Buffers in memory at the worst moment; never above ``max_memory``."""
        return min(self.max_memory, peak_of((f.price for f in self._leading()), self.workers))

    def _leading(self) -> Iterator[Fill]:
        """The first fill of each read, which pays for it."""
        return (self.fill(read.fills[0]) for read in self.reads)
