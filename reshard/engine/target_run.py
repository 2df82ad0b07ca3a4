"""TargetRun: one target of a run, as the engine sees it."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

from msgspec import Struct

from reshard.engine.books import Books
from reshard.engine.output import TargetOutput
from reshard.engine.task import Result
from reshard.planning.tensor_plan import Plan


class DoneUnits:
    """Which units of which tensors are done already: a byte for each unit of the plan."""

    def __init__(self, plan: Plan) -> None:
        counts = [tensor.unit_count for tensor in plan.tensors]
        self._first = list(itertools.accumulate(counts, initial=0))
        self._done = bytearray(self._first[-1])

    def add(self, tensor: int, unit: int) -> None:
        self._done[self._first[tensor] + unit] = 1

    def has(self, tensor: int, unit: int) -> bool:
        return bool(self._done[self._first[tensor] + unit])


class TargetRun(Struct, frozen=True):
    """Where the tasks of a target write, and where their results are added up.

    Attributes:
        done: units that are filled, by an earlier run or by this one; None where nobody asks.
        record: called with the results of each batch, after the kernel has all of their bytes and
            their complete chunks are closed.
    """

    output: TargetOutput
    books: Books
    done: DoneUnits | None = None
    record: Callable[[Sequence[Result]], None] | None = None

    def is_first(self, result: Result) -> bool:
        """Notes a unit that was filled; False where it was filled before, since a task may be carried out twice."""
        if self.done is None:
            return True
        if self.done.has(result.tensor, result.unit):
            return False
        self.done.add(result.tensor, result.unit)
        return True
