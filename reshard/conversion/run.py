"""Run: the request, findings and reports of one run of a conversion; TotalProgress: the progress of its targets, added up."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Executor
from functools import partial

from msgspec import Struct, field
from msgspec.structs import replace

from reshard.conversion.check_target import CheckedTarget
from reshard.conversion.conversion_key import ConversionKey
from reshard.conversion.report import ConversionReport, PartReport
from reshard.conversion.sealed_parts import Scope
from reshard.engine.progress import Progress, Stage, Tell
from reshard.formats.registry import CheckpointPath
from reshard.planning.estimates import RequestPlan, TimePlan
from reshard.storage.location import locate


class Run(Struct):
    """The state that the steps of a conversion share, and the report of each target that is done.

    Attributes:
        chosen, targets: with absolute paths: a worker of the executor may have another working directory,
            and that of the caller may change meanwhile.
        scope: all of the conversion, a part of it, or the commit of its parts.
        keys: of the conversion to each target.
        read_bytes: encoded bytes that this run read from the source, for all targets together.
        requests: to buckets, as planned; None where nothing is in a bucket.
        time: as planned, where several hosts convert.
    """

    chosen: CheckpointPath
    targets: Sequence[CheckedTarget]
    scope: Scope
    executor: Executor | None
    progress: TotalProgress
    before_publish: Callable[[str], None] | None
    started: float
    keys: Sequence[ConversionKey] = ()
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
        """The numbers of the targets that need no more work."""
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
    """A new run, from here on with absolute paths."""
    chosen = replace(chosen, path=str(chosen.root))
    targets = [replace(target, target=str(locate(target.target))) for target in targets]
    total = TotalProgress(progress)
    return Run(chosen, targets, scope, executor, total, before_publish, time.monotonic())


class TotalProgress:
    """Adds up the progress of several targets while bytes are copied.

    A target reports at the latest when its first task is done; until then its bytes are known from
    ``expect``.

    Attributes:
        listener: gets the sums; None without one.
    """

    def __init__(self, listener: Tell | None) -> None:
        self.listener = listener
        self._latest: dict[int, Progress] = {}

    def of(self, number: int) -> Tell | None:
        """The function that target ``number`` calls with its own progress; None without a listener."""
        return None if self.listener is None else partial(self._add, self.listener, number)

    def expect(self, number: int, total_bytes: int, tasks: int) -> None:
        """Counts a target that has no task done yet."""
        self._latest[number] = Progress(0, total_bytes, 0, tasks, "")

    def end(self, stage: Stage) -> None:
        """Reports that everything is copied, and the stage that comes now."""
        if self.listener is None:
            return
        total = self._sum("")
        self.listener(
            replace(total, moved_bytes=total.total_bytes, tasks_done=total.tasks, stage=stage)
        )

    def _add(self, listener: Tell, number: int, progress: Progress) -> None:
        if progress.stage != "copying":
            listener(progress)
            return
        self._latest[number] = progress
        listener(self._sum(progress.tensor))

    def _sum(self, tensor: str) -> Progress:
        every = self._latest.values()
        return Progress(
            sum(p.moved_bytes for p in every),
            sum(p.total_bytes for p in every),
            sum(p.tasks_done for p in every),
            sum(p.tasks for p in every),
            tensor,
            resumed_bytes=sum(p.resumed_bytes for p in every),
            hosts=_by_host(every),
        )


def _by_host(every: Collection[Progress]) -> Mapping[str, int]:
    if len(every) == 1:
        return next(iter(every)).hosts
    found: dict[str, int] = {}
    for progress in every:
        for host, nbytes in progress.hosts.items():
            found[host] = found.get(host, 0) + nbytes
    return found
