"""TargetRun: one target of a run, as the engine sees it."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

from msgspec import Struct

from reshard.engine.accumulator import Accumulator
from reshard.engine.output import TargetOutput
from reshard.engine.task import Finished
from reshard.planning.move import Plan


class DoneUnits:
    """Which units of which moves are done already: a byte for each unit of the plan."""

    def __init__(self, plan: Plan) -> None:
        counts = [move.units.count for move in plan.moves]
        self._first = list(itertools.accumulate(counts, initial=0))
        self._done = bytearray(self._first[-1])

    def add(self, move: int, unit: int) -> None:
        self._done[self._first[move] + unit] = 1

    def has(self, move: int, unit: int) -> bool:
        return bool(self._done[self._first[move] + unit])


class TargetRun(Struct, frozen=True):
    """Where the tasks of a target write, and where their results are added up.

    Attributes:
        done: units that are filled, by an earlier run or by this one; None where nobody asks.
        record: called with the finished tasks of each batch, after the kernel has all of their bytes and
            their complete chunks are closed.
    """

    output: TargetOutput
    accumulator: Accumulator
    done: DoneUnits | None = None
    record: Callable[[Sequence[Finished]], None] | None = None

    def is_first(self, task: Finished) -> bool:
        """Notes a finished task; False where its unit was filled before, since a task may be carried out twice."""
        if self.done is None:
            return True
        move, unit = task.result.move, task.unit
        if self.done.has(move, unit):
            return False
        self.done.add(move, unit)
        return True
