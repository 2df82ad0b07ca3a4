"""Converts from end to end: plans, writes where no reader looks, and publishes.

``run_conversion`` is the story in ten steps, whatever the scope of the run: all of a conversion, one part of it, or the commit of
what its parts did. Where a scope differs, the step says so. A journal records what is done, so that the next run resumes an
interrupted one. The source is read once for all targets. Each target has a transaction and books of its own; targets are
published one after the other, since no store makes several appear in one step.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import ExitStack
from typing import Any

from msgspec.structs import replace

from reshard.conversion.check_target import CheckedTarget
from reshard.conversion.conversion_key import key_of_conversion, source_state
from reshard.conversion.finish import FinishedTarget, finish_target, publish_target
from reshard.conversion.finished_target import clean_published, open_result, recorded_report
from reshard.conversion.lock_targets import begin_targets, check_hosts, locked_targets
from reshard.conversion.make_plan import local_paths, plan_requests, plan_targets
from reshard.conversion.make_report import (
    finished_report,
    made_report,
    multi_report,
    part_report,
    report_finished,
)
from reshard.conversion.report import ConversionReport, MultiReport, PartReport
from reshard.conversion.resumed import removed_once_published
from reshard.conversion.run import Run, start_run
from reshard.conversion.sealed_parts import (
    WHOLE,
    Scope,
    agreed_request,
    refuse_overwriting,
    seal,
    take_over,
)
from reshard.conversion.target_job import OpenTarget, check_space, check_space_left, target_jobs
from reshard.conversion.target_plan import Planned
from reshard.engine.books import TargetRun
from reshard.engine.error_context import about_target
from reshard.engine.executor import HostsExecutor, hosts_of, is_own, opened
from reshard.engine.limits import Limits
from reshard.engine.progress import Progress
from reshard.engine.read_tasks import ALL
from reshard.engine.run import run_batches
from reshard.engine.task_stream import task_batches
from reshard.errors import PlanError, TargetExistsError
from reshard.formats.delta.read_delta import version_of_name
from reshard.formats.registry import CheckpointPath, open_reader
from reshard.log import log
from reshard.planning.estimates import TimePlan
from reshard.storage.location import locate
from reshard.storage.parts import Part, remove_parts
from reshard.storage.targets import target_text


def convert_targets(
    chosen: CheckpointPath,
    targets: Sequence[CheckedTarget],
    executor: Executor | None = None,
    progress: Callable[[Progress], None] | None = None,
    before_publish: Callable[[str], None] | None = None,
) -> MultiReport:
    """Converts to all targets, resumes an interrupted run of the same conversion, or finds that it is done.

    Every target appears whole or not at all, one after the other once all tasks are done.
    """
    if not isinstance(executor, Executor | None):
        raise PlanError(
            f"executor is {executor!r}; expected a concurrent.futures.Executor, or None for threads"
        )
    source, targets = local_paths(chosen.path, targets)
    run = start_run(chosen, targets, WHOLE, executor, progress, before_publish)
    log("converting %r to %s", source, ", ".join(repr(target.target) for target in targets))
    run_conversion(run)
    report = multi_report(run, source, [target.target for target in targets])
    for made in report.reports:
        said = (len(made.tensors), source, made.target, made.seconds)
        log("converted %d tensors of %r to %r in %.1f s", *said, warnings=made.warnings)
    return report


def convert_one_part(
    chosen: CheckpointPath,
    target: CheckedTarget,
    part: Part,
    options: Mapping[str, Any],
    progress: Callable[[Progress], None] | None = None,
) -> PartReport:
    """Does one part, or what is left of it. ``options``: the target's options as plain data; all parts give the same.

    Every part makes the same plan and takes its share of the units (``engine.read_tasks``). It keeps its work in a folder
    of its own, with its own lock and journal.
    """
    source, targets = local_paths(chosen.path, [target])
    refuse_overwriting(*targets)
    run = start_run(chosen, targets, Scope(part, options), None, progress)
    run_conversion(run)
    return replace(run.part_reports[0], source=source, target=targets[0].target)


def commit_parts(
    target: str, state: str | None = None, progress: Callable[[Progress], None] | None = None
) -> ConversionReport:
    """Publishes the target that all parts have made.

    Raises MissingError where no part was begun, StorageError naming the parts that are missing or not done, TargetBusyError
    where one is at work, SourceChangedError and VerificationError as a conversion does.
    """
    started, place = time.monotonic(), locate(target_text(target))
    agreed = agreed_request(place, state)
    if agreed is None:
        found = open_reader(str(place))
        return finished_report(
            "", target, found, time.monotonic() - started, recorded_report(found)
        )
    chosen = CheckpointPath.at(agreed.source, agreed.unlisted)
    run = start_run(chosen, [agreed.target(str(place))], Scope(agreed=agreed), None, progress)
    run_conversion(run)
    return replace(run.reports[0], source=agreed.source, target=target)


def run_conversion(run: Run) -> None:
    """Does what is left of a conversion within the scope of the run, step by step, and notes the reports."""
    _note_source(run)
    _find_finished(run)
    if run.is_unfinished:
        planned = _open_and_plan(run)
        jobs = target_jobs(planned, run.chosen, run.targets, run.keys, run.finished)
        if run.scope.is_whole:  # parts do not know how much of their space the others have taken
            check_space(jobs)
        with locked_targets(run, planned, jobs) as targets:
            with begin_targets(run, targets):
                _fill(run, planned, targets)
            for target in targets:
                if run.scope.part is not None:  # it appears with the commit
                    _report_part(run, target, run.scope.part)
                    continue
                found = _prove(run, target, planned.limits(run.executor))
                _publish(run, target)
                _report(run, target, found)
        if run.scope.is_commit:
            for job in jobs:
                remove_parts(job.place, job.options.state)


def _note_source(run: Run) -> None:
    """Notes the state of the source before reading it, so that no data is older than that state."""
    chosen = run.chosen
    state = source_state(chosen.root, chosen.deltas)
    run.keys = [
        key_of_conversion(
            run.source,
            target.options,
            state,
            chosen.unlisted,
            chosen.deltas,
            version_of_name(locate(target.target).name),
        )
        for target in run.targets
    ]


def _find_finished(run: Run) -> bool:
    """Reports the targets that are already finished results of this conversion; true if there is any."""
    before = len(run.finished)
    for number, (target, key) in enumerate(zip(run.targets, run.keys, strict=True)):
        if number in run.finished or target.options.overwrite:
            continue
        if (result := open_result(target.target, key)) is not None:
            if run.scope.is_commit:  # an earlier commit was interrupted after it published
                remove_parts(locate(target.target), target.options.state)
            if run.scope.part is None:  # a part leaves what it finds to the commit
                clean_published(target, key)
            report_finished(run, number, result)
    return len(run.finished) > before


def _open_and_plan(run: Run) -> Planned:
    """Opens the source and plans; a target that another run published meanwhile counts as finished."""
    by_hosts = not run.scope.is_whole  # all parts have the plan that other hosts have
    while True:
        try:
            planned = plan_targets(
                run.chosen, run.targets, run.finished, run.executor, by_hosts=by_hosts
            )
        except TargetExistsError:
            if not _find_finished(run):
                raise
        else:
            if run.scope.is_whole:
                run.requests = plan_requests(
                    planned, run.targets, run.chosen, finished=run.finished
                )
                run.time = _planned_time(run, planned)
            return planned


def _planned_time(run: Run, planned: Planned) -> TimePlan | None:
    """The time that the executor's hosts need for all targets; None for one host."""
    hosts = hosts_of(run.executor)
    if hosts == 1:
        return None
    return planned.summary.with_requests(run.requests).answer().time(hosts)


def _fill(run: Run, planned: Planned, targets: Sequence[OpenTarget]) -> None:
    """Fills what is left by tasks, or from the work of the parts. A part then seals its work."""
    if run.scope.is_whole:
        check_space_left(targets)
    if run.scope.is_commit:
        for target in targets:
            take_over(target)
        return
    _run_tasks(run, planned, targets)
    if run.scope.part is not None:
        for target in targets:
            seal(target, run.scope.part, run.source)


def _run_tasks(run: Run, planned: Planned, targets: Sequence[OpenTarget]) -> None:
    """Runs the tasks that are left of this run's part, and records them."""
    plan = planned.summary.total
    runs: list[TargetRun | None] = [None] * len(run.targets)
    for target in targets:
        runs[target.job.number] = target.run
    workers = 0 if is_own(run.executor) else plan.workers * hosts_of(run.executor)
    part = run.scope.part or ALL
    batches = task_batches(plan, [planned.reader], runs, part, workers_elsewhere=workers)
    with ExitStack() as unfinished:
        for target in targets:
            if target.output.uploads is not None:
                unfinished.callback(target.output.uploads.abort)
            unfinished.callback(target.transaction.close_to_tasks)
        limits = (plan.max_memory, plan.workers)
        unfinished.enter_context(opened(run.executor, *limits, plan.processes))
        if isinstance(run.executor, HostsExecutor) and targets:
            check_hosts(run.executor, run.source, run.keys[0].files, targets)
        run.read_bytes = run_batches(batches, runs, *limits, run.executor, plan.processes)


def _prove(run: Run, target: OpenTarget, limits: Limits) -> FinishedTarget:
    with about_target(target.job.name):
        return finish_target(target, limits, run.progress)


def _publish(run: Run, target: OpenTarget) -> None:
    """The target appears, now that all of its bytes are proven."""
    job = target.job
    with about_target(job.name):
        if run.before_publish is not None:
            run.before_publish(str(job.place))
        publish_target(target)
        removed_once_published(target)
        for part in target.parts.values():
            part.abort()


def _report(run: Run, target: OpenTarget, found: FinishedTarget) -> None:
    # The parts moved what a commit takes over.
    resumed_bytes = 0 if run.scope.is_commit else target.books.resumed_bytes
    report = made_report(target.job, found, run.seconds, resumed_bytes)
    run.reports[target.job.number] = report


def _report_part(run: Run, target: OpenTarget, part: Part) -> None:
    report = part_report(target, part, run.read_bytes, run.seconds)
    run.part_reports[target.job.number] = report
