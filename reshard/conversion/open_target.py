"""OpenTarget: one target while a run writes it."""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct

from reshard.conversion.resume.journal import Journal
from reshard.conversion.target_job import TargetJob
from reshard.engine.accumulator import Accumulator
from reshard.engine.output import TargetOutput
from reshard.engine.progress import Progress
from reshard.engine.target_run import DoneUnits, TargetRun
from reshard.storage.staging import Staging


class OpenTarget(Struct):
    """A job with its held staging folder, and what is done of it.

    Attributes:
        progress: told what is done of it.
        journal: None until it has begun, or has taken over what an earlier run left.
        done: units that an earlier run filled; None until it has begun.
        is_published: whether the target is there, and the staging folder is only to be removed.
    """

    job: TargetJob
    staging: Staging
    output: TargetOutput
    accumulator: Accumulator
    progress: Callable[[Progress], None] | None = None
    journal: Journal | None = None
    done: DoneUnits | None = None
    is_published: bool = False

    @property
    def is_begun(self) -> bool:
        """Whether what is in the staging folder is this run's, or was taken over by it."""
        return self.journal is not None

    @property
    def run(self) -> TargetRun:
        """The part that the engine needs."""
        record = None if self.journal is None else self.journal.append
        return TargetRun(self.output, self.accumulator, self.done, record)
