"""OpenTarget: one target while a run writes it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec import Struct

from reshard.conversion.resume.journal import record_of
from reshard.conversion.target_job import TargetJob
from reshard.engine.accumulator import Accumulator
from reshard.engine.output import TargetOutput
from reshard.engine.progress import Progress
from reshard.engine.target_run import DoneUnits, TargetRun
from reshard.engine.task import Finished
from reshard.storage.transaction import Transaction


class OpenTarget(Struct):
    """A job with its transaction, and what is done of it.

    Attributes:
        progress: told what is done of it.
        done: units that an earlier run filled; None until it has begun, or has taken over what an earlier run left.
        is_published: whether the target is there, and what else was written is only to be removed.
    """

    job: TargetJob
    transaction: Transaction
    output: TargetOutput
    accumulator: Accumulator
    progress: Callable[[Progress], None] | None = None
    done: DoneUnits | None = None
    is_published: bool = False

    @property
    def is_begun(self) -> bool:
        """Whether what was written is this run's, or was taken over by it."""
        return self.done is not None

    @property
    def run(self) -> TargetRun:
        """The part that the engine needs."""
        return TargetRun(self.output, self.accumulator, self.done, self._record)

    def _record(self, finished: Sequence[Finished]) -> None:
        self.transaction.append(record_of(finished))
