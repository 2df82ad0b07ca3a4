"""Run: what a run of a conversion was asked, what its steps have found, and what they report."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Executor

from msgspec import Struct, field
from msgspec.structs import replace

from reshard.conversion.check_target import CheckedTarget
from reshard.conversion.parts.request import Scope
from reshard.conversion.report import ConversionReport, PartReport
from reshard.conversion.resume.identity import Identity
from reshard.conversion.total_progress import TotalProgress
from reshard.engine.progress import Progress
from reshard.formats.checkpoint_path import CheckpointPath
from reshard.planning.request_plan import RequestPlan
from reshard.planning.time_plan import TimePlan
from reshard.storage.location import locate


class Run(Struct):
    """What the steps of a conversion share, and the report of each target that is done.

    Attributes:
        chosen, targets: with absolute paths: a worker of the executor may have another working directory,
            and that of the caller may change meanwhile.
        scope: all of the conversion, a part of it, or the commit of its parts.
        identities: of each target.
        read_bytes: encoded bytes that this run read from the source, for all targets together.
        requests: to buckets, as planned; None where there is nothing in one.
        time: as planned, where several hosts convert.
    """

    chosen: CheckpointPath
    targets: Sequence[CheckedTarget]
    scope: Scope
    executor: Executor | None
    progress: TotalProgress
    before_publish: Callable[[str], None] | None
    started: float
    identities: Sequence[Identity] = ()
    reports: dict[int, ConversionReport] = field(default_factory=dict)
    part_reports: dict[int, PartReport] = field(default_factory=dict)
    read_bytes: int = 0
    requests: RequestPlan | None = None
    time: TimePlan | None = None

    @property
    def source(self) -> str:
        return self.chosen.path

    @property
    def finished(self) -> set[int]:
        """The numbers of the targets of which nothing is left to do."""
        return {*self.reports, *self.part_reports}

    @property
    def is_unfinished(self) -> bool:
        return len(self.finished) < len(self.targets)

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.started


def start_run(
    chosen: CheckpointPath,
    targets: Sequence[CheckedTarget],
    scope: Scope,
    executor: Executor | None,
    progress: Callable[[Progress], None] | None,
    before_publish: Callable[[str], None] | None = None,
) -> Run:
    """A run of which nothing is done yet, from here on with absolute paths."""
    chosen = replace(chosen, path=str(chosen.root))
    targets = [replace(target, target=str(locate(target.target))) for target in targets]
    total = TotalProgress(progress)
    return Run(chosen, targets, scope, executor, total, before_publish, time.monotonic())
