"""Converts from end to end: plans, writes where no reader looks, and publishes.

``convert_all`` is the story in ten steps. A journal records what is done, so that the next run resumes an
interrupted one. The source is read once for all targets. Each target has a transaction and
books of its own; targets are published one after the other, since no store makes several
appear in one step.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor
from contextlib import ExitStack, closing, contextmanager
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from reshard.conversion.check_hosts import check_hosts
from reshard.conversion.check_target import CheckedTarget
from reshard.conversion.finish import commit, finish
from reshard.conversion.make_report import already_done, conversion_report
from reshard.conversion.predict_requests import plan_requests
from reshard.conversion.prepare import Planned, local_paths, plan_targets
from reshard.conversion.report import ConversionReport, MultiReport, RequestReport, TimeReport
from reshard.conversion.resume.already_done import abort_own, open_result, remove_leftovers
from reshard.conversion.resume.cleanup import kept_where_useful, removed_once_published
from reshard.conversion.resume.identity import Identity, identify, source_state
from reshard.conversion.resume.resume import begin_or_resume
from reshard.conversion.target_job import (
    OpenTarget,
    TargetJob,
    check_space,
    check_space_left,
    open_output,
    target_jobs,
)
from reshard.conversion.total_progress import TotalProgress
from reshard.engine.books import Books, TargetRun
from reshard.engine.error_context import about_target
from reshard.engine.executor import HostsExecutor, hosts_of, opened
from reshard.engine.limits import Limits
from reshard.engine.progress import Progress
from reshard.engine.run import run_batches
from reshard.engine.task_stream import task_batches
from reshard.engine.tensor_book import TensorResult
from reshard.errors import PlanError, ResumeError, TargetExistsError
from reshard.formats.base import Reader
from reshard.formats.checkpoint_path import CheckpointPath
from reshard.log import log
from reshard.planning.request_plan import RequestPlan
from reshard.planning.time_plan import TimePlan
from reshard.storage.buckets.counts import so_far
from reshard.storage.location import locate
from reshard.storage.parts import remove_parts
from reshard.storage.targets import check_new, held_target


def convert_all(
    chosen: CheckpointPath,
    targets: Sequence[CheckedTarget],
    executor: Executor | None = None,
    progress: Callable[[Progress], None] | None = None,
    before_publish: Callable[[str], None] | None = None,
) -> MultiReport:
    """Converts, resumes an interrupted run of the same conversion, or finds that it is done.

    Every target appears whole or not at all, one after the other once all tasks are done.
    """
    _refuse_no_executor(executor)
    source, targets = local_paths(chosen.path, targets)
    run = _start(chosen, targets, executor, progress, before_publish)
    log("converting %r to %s", source, ", ".join(repr(target.target) for target in targets))
    _note_source(run)
    _find_finished(run)
    if run.is_unfinished:
        planned = _open_and_plan(run)
        jobs = target_jobs(planned, run.targets, run.identities, run.reports)
        check_space(jobs)
        limits = planned.limits(executor)
        with _locked(run, jobs, limits) as open_targets:
            with _begun(open_targets):
                check_space_left(open_targets)
                _run_tasks(run, planned, open_targets)
            for target in open_targets:
                results = _prove(run, target, limits)
                _publish(run, target)
                _report(run, target, results)
    report = _multi_report(run, source, targets)
    for made in report.reports:
        said = (len(made.tensors), source, made.target, made.seconds)
        log("converted %d tensors of %r to %r in %.1f s", *said, warnings=made.warnings)
    return report


def _refuse_no_executor(executor: Any) -> None:
    if not isinstance(executor, Executor | None):
        raise PlanError(
            f"executor is {executor!r}; expected a concurrent.futures.Executor, or None for threads"
        )


class _Run(Struct):
    """What the steps share, and the report of each target that is done.

    Attributes:
        chosen, targets: with absolute paths: a worker of the executor may have another working directory,
            and that of the caller may change meanwhile.
        identities: of each target.
        read_bytes: encoded bytes that this run read from the source, for all targets together.
        requests: to buckets, as planned; None where there is nothing in one.
        time: as planned, where several hosts convert.
    """

    chosen: CheckpointPath
    targets: Sequence[CheckedTarget]
    executor: Executor | None
    progress: TotalProgress
    before_publish: Callable[[str], None] | None
    started: float
    identities: Sequence[Identity] = ()
    reports: dict[int, ConversionReport] = field(default_factory=dict)
    read_bytes: int = 0
    requests: RequestPlan | None = None
    time: TimePlan | None = None

    @property
    def source(self) -> str:
        return self.chosen.path

    @property
    def is_unfinished(self) -> bool:
        return len(self.reports) < len(self.targets)

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.started

    def report_finished(self, number: int, result: Reader) -> None:
        """Reports a target as finished by an earlier run."""
        target, tensors = self.targets[number].target, result.tensors.values()
        self.reports[number] = already_done(self.source, target, tensors, self.seconds)


def _start(
    chosen: CheckpointPath,
    targets: Sequence[CheckedTarget],
    executor: Executor | None,
    progress: Callable[[Progress], None] | None,
    before_publish: Callable[[str], None] | None,
) -> _Run:
    chosen = replace(chosen, path=str(chosen.root))
    targets = [replace(target, target=str(locate(target.target))) for target in targets]
    total = TotalProgress(progress)
    return _Run(chosen, targets, executor, total, before_publish, time.monotonic())


def _note_source(run: _Run) -> None:
    """Notes the state of the source before anything of it is read: what is read is at least as new."""
    state = source_state(run.chosen.root)
    unlisted = run.chosen.unlisted
    run.identities = [
        identify(run.source, target.options, state, unlisted) for target in run.targets
    ]


def _find_finished(run: _Run) -> bool:
    """Reports the targets that are already finished results of this conversion; whether it found any."""
    before = len(run.reports)
    for number, (target, identity) in enumerate(zip(run.targets, run.identities, strict=True)):
        if number in run.reports or target.options.overwrite:
            continue
        if (result := open_result(target.target, identity)) is not None:
            remove_leftovers(target, identity)
            run.report_finished(number, result)
    return len(run.reports) > before


def _open_and_plan(run: _Run) -> Planned:
    """Opens the source, plans and refuses; another run of this conversion may publish a target meanwhile."""
    while True:
        try:
            planned = plan_targets(run.chosen, run.targets, run.reports, run.executor)
        except TargetExistsError:
            if not _find_finished(run):
                raise
        else:
            run.requests = plan_requests(planned, run.targets, run.chosen, finished=run.reports)
            run.time = _planned_time(run, planned)
            return planned


def _planned_time(run: _Run, planned: Planned) -> TimePlan | None:
    """What the executor's hosts need for all targets; None for one host."""
    hosts = hosts_of(run.executor)
    if hosts == 1:
        return None
    return replace(planned.summary, requests=run.requests).time(hosts)


@contextmanager
def _locked(run: _Run, jobs: Sequence[TargetJob], limits: Limits) -> Iterator[Sequence[OpenTarget]]:
    """Opens and locks each target for the block. Where the block fails, what a run can resume is kept."""
    outputs = [open_output(job, limits) for job in jobs]
    opened: list[OpenTarget] = []
    with ExitStack() as locks, kept_where_useful(opened, len(run.targets)):
        for job, output in zip(jobs, outputs, strict=True):
            with about_target(job.name):
                held = held_target(
                    job.place,
                    job.file,
                    unsafe=job.options.unsafe_commit,
                    state=job.options.state,
                )
                transaction = locks.enter_context(held)
                if (result := _published_meanwhile(job)) is not None:
                    abort_own(transaction, job.identity)
                    run.report_finished(job.number, result)
                    continue
            if output.uploads is not None:
                output.uploads.check = transaction.check
            progress = run.progress.of(job.number)
            books = Books(job.plan, output, progress)
            run.progress.expect(job.number, books.total_bytes, job.plan.tasks)
            opened.append(OpenTarget(job, transaction, output, books, progress))
        yield opened


def _published_meanwhile(job: TargetJob) -> Reader | None:
    """The target, where another run of this conversion published it while this one planned."""
    return None if job.options.overwrite else open_result(str(job.place), job.identity)


@contextmanager
def _begun(targets: Sequence[OpenTarget]) -> Iterator[None]:
    """Begins each target, or resumes what an earlier run left; records can be appended in the block."""
    with ExitStack() as open_records:
        for target in targets:
            with about_target(target.job.name):
                job = target.job
                check_new(job.place, overwrite=job.options.overwrite, is_file=bool(job.file))
                _refuse_parts(target)
                begin_or_resume(target)
                if job.by_hosts:
                    elsewhere = target.transaction.open_elsewhere()
                    target.output = replace(target.output, elsewhere=elsewhere)
            open_records.enter_context(closing(target.transaction))
        yield


def _refuse_parts(target: OpenTarget) -> None:
    """What parts of a conversion have done is not removed unless that is asked for."""
    place, options = target.job.place, target.job.options
    if not target.transaction.has_parts():
        return
    if not target.job.restart:
        raise ResumeError(
            f"parts of a conversion to {place} were begun: do the others and commit them (reshard commit), remove them (reshard clean), or "
            "start over (restart)"
        )
    remove_parts(place, options.state)


def _run_tasks(run: _Run, planned: Planned, targets: Sequence[OpenTarget]) -> None:
    """Does what is left to do, and records it."""
    plan = planned.summary.total
    runs: list[TargetRun | None] = [None] * len(run.targets)
    for target in targets:
        runs[target.job.number] = target.run
    workers = plan.workers * hosts_of(run.executor) if planned.by_hosts else 0
    batches = task_batches(plan, [planned.reader], runs, workers_elsewhere=workers)
    with ExitStack() as unfinished:
        for target in targets:
            if target.output.uploads is not None:
                unfinished.callback(target.output.uploads.abort)
            unfinished.callback(target.transaction.close_elsewhere)
        limits = (plan.max_memory, plan.workers)
        unfinished.enter_context(opened(run.executor, *limits, plan.processes))
        if isinstance(run.executor, HostsExecutor) and targets:
            check_hosts(run.executor, run.source, run.identities[0].files, targets)
        run.read_bytes = run_batches(batches, runs, *limits, run.executor, plan.processes)


def _prove(run: _Run, target: OpenTarget, limits: Limits) -> Sequence[TensorResult]:
    with about_target(target.job.name):
        return finish(target, limits, run.progress)


def _publish(run: _Run, target: OpenTarget) -> None:
    """The target appears, now that all of its bytes are proven."""
    job = target.job
    with about_target(job.name):
        if run.before_publish is not None:
            run.before_publish(str(job.place))
        commit(target)
        removed_once_published(target)


def _report(run: _Run, target: OpenTarget, results: Sequence[TensorResult]) -> None:
    resumed_bytes = target.books.resumed_bytes
    report = conversion_report(target.job, results, run.seconds, resumed_bytes)
    run.reports[target.job.number] = report


def _multi_report(run: _Run, source: str, targets: Sequence[CheckedTarget]) -> MultiReport:
    """The reports in the order of the targets, with the paths that the caller gave."""
    reports = tuple(
        replace(run.reports[number], source=source, target=target.target)
        for number, target in enumerate(targets)
    )
    requests, took = _request_report(run), _time_report(run)
    if len(reports) == 1:
        reports = (replace(reports[0], requests=requests, time=took),)
    return MultiReport(source, reports, run.read_bytes, run.seconds, requests, took)


def _request_report(run: _Run) -> RequestReport | None:
    if run.requests is None:
        return None
    return RequestReport(run.requests.requests(), so_far() - run.chosen.before)


def _time_report(run: _Run) -> TimeReport | None:
    return None if run.time is None else TimeReport(run.time, run.seconds)
