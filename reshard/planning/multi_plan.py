"""MultiPlan: one plan for each of several targets, and which of their moves share a read."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct

from reshard.planning.move import Move, Plan, peak_of


class MoveAt(Struct, frozen=True):
    """One move: number ``move`` in the plan of target number ``target``."""

    target: int
    move: int


class MultiPlan(Struct, frozen=True):
    """Plans for several targets of one source, which are carried out in one run.

    Attributes:
        reads: groups of moves, one move per target, that are filled from one decoding of one tensor. They share units,
            band and the memory of a task.
    """

    plans: tuple[Plan, ...]
    reads: tuple[tuple[MoveAt, ...], ...]

    @classmethod
    def alone(cls, plan: Plan) -> MultiPlan:
        """The plan of a single target."""
        return cls((plan,), tuple((MoveAt(0, number),) for number in range(len(plan.moves))))

    def move(self, at: MoveAt) -> Move:
        return self.plans[at.target].moves[at.move]

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
        return sum(move.price.tasks for move in self._leading())

    @property
    def decoded_bytes(self) -> int:
        """Bytes decoded from source chunks, for all targets together."""
        return sum(move.price.decoded_bytes for move in self._leading())

    @property
    def source_bytes(self) -> int:
        """Bytes of the source chunks that any target needs, each counted once."""
        held = {move.placement.source: move.price.source_bytes for move in self._leading()}
        return sum(held.values())

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
        return min(self.max_memory, peak_of((m.price for m in self._leading()), self.workers))

    def _leading(self) -> Iterator[Move]:
        """One move of each read; all moves of a read decode the same chunks."""
        return (self.move(read[0]) for read in self.reads)
