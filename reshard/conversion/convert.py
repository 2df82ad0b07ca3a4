"""Converts from end to end: plans, writes where no reader looks, and publishes.

``run_conversion`` is the story of a whole conversion; the modules of ``parts/`` tell those of a part and of the commit of parts, with the
same steps. A
journal records what is done, so that the next run resumes an interrupted one. The source is read once for all targets. Each target has a
transaction and books of its own; targets are published one after the other, since no store makes several appear in one step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from contextlib import ExitStack
from typing import Any

from msgspec.structs import replace

from reshard.conversion.check_target import CheckedTarget
from reshard.conversion.conversion_key import key_of_conversion, source_state
from reshard.conversion.make_plan import JointPlan, TargetPlan, local_paths, plan_targets
from reshard.conversion.open_target import (
    OpenTarget,
    abort_own,
    begun_targets,
    check_space,
    check_space_left,
    clean_published,
    lock_whole,
    locked_targets,
    open_output,
    open_result,
    open_target,
    removed_once_published,
)
from reshard.conversion.prove import finish_target, publish_target
from reshard.conversion.report import ConversionReport, MultiReport, finished_report, made_report
from reshard.conversion.resumed import begin_or_resume
from reshard.conversion.run import Feature, Run, features_of_run, start_run
from reshard.engine.books import TargetRun
from reshard.engine.error_context import about_target
from reshard.engine.output import TargetOutput
from reshard.engine.part_units import ALL
from reshard.engine.progress import Progress
from reshard.engine.run import run_batches
from reshard.engine.task_stream import task_batches
from reshard.errors import ResumeError, TargetExistsError
from reshard.formats.base import Reader
from reshard.formats.names import IDENTITY_NAME
from reshard.formats.registry import CheckpointPath
from reshard.log import log
from reshard.storage.location import locate
from reshard.storage.parts import Part, remove_parts
from reshard.storage.targets import check_new


def convert_targets(
    chosen: CheckpointPath,
    targets: Sequence[CheckedTarget],
    executor: Executor | None = None,
    progress: Callable[[Progress], None] | None = None,
    before_publish: Callable[[str], None] | None = None,
) -> MultiReport:
    """Converts to all targets, resumes an interrupted run of the same conversion, or finds that it is done.

    Every target appears whole or not at all, one after the other once all tasks are done. ``executor``: threads of this process.
    """
    source, targets = local_paths(chosen.path, targets)
    run = start_run(chosen, targets, progress, executor, before_publish)
    log("converting %r to %s", source, ", ".join(repr(target.target) for target in targets))
    run_conversion(run)
    # With the paths that the caller gave.
    reports = tuple(
        replace(run.reports[number], source=source, target=target.target)
        for number, target in enumerate(targets)
    )
    if len(reports) == 1:
        reports = (replace(reports[0], **run.members),)
    for made in reports:
        said = (len(made.tensors), source, made.target, made.seconds)
        log("converted %d tensors of %r to %r in %.1f s", *said, warnings=made.warnings)
    return MultiReport(source, reports, run.read_bytes, run.seconds, **run.members)


def run_conversion(run: Run[ConversionReport]) -> None:
    """Does what is left of a conversion, step by step, and notes the reports."""
    note_source(run)
    find_finished(run, report_finished)
    if not run.is_unfinished:
        return
    places = [target.target for target in run.targets]
    features = features_of_run(run.source, places)
    plan = open_and_plan(run, report_finished, features)
    left, limits = to_carry_out(run, plan), plan.limits(run.executor)
    check_space(left)
    outputs = [open_output(each, limits) for each in left]

    def lock(planned: TargetPlan, output: TargetOutput, locks: ExitStack) -> OpenTarget | None:
        target = open_target(run, planned, output, lock_whole(planned, locks))
        return None if _is_published_meanwhile(run, target) else target

    with locked_targets(run, left, outputs, lock) as targets:
        with begun_targets(targets, _begin):
            check_space_left(targets)
            do_tasks(run, plan, targets)
        for target in targets:
            prove_and_publish(run, plan, target)
    for feature in plan.features:
        run.members |= feature.end(run, plan)


def note_source(run: Run[Any]) -> None:
    """Notes the state of the source before reading it, so that no data is older than that state."""
    chosen = run.chosen
    state = source_state(chosen.root, chosen.computed)
    run.keys = [
        key_of_conversion(run.source, target, state, chosen.unlisted, chosen.computed)
        for target in run.targets
    ]


Found = Callable[[Run[Any], int, Reader], None]
"""Reports a target, by its number, that is already the finished result of this conversion."""


def find_finished(run: Run[Any], report: Found) -> bool:
    """Reports the targets that are already finished results of this conversion; true if there is any."""
    before = len(run.reports)
    for number, (target, key) in enumerate(zip(run.targets, run.keys, strict=True)):
        if number in run.reports or target.overwrite:
            continue
        if (result := open_result(target.target, key)) is not None:
            report(run, number, result)
    return len(run.reports) > before


def report_finished(run: Run[ConversionReport], number: int, result: Reader) -> None:
    """Reports a target that an earlier run finished, with the identity that this one asks for; removes what that run left."""
    target = run.targets[number]
    clean_published(target, run.keys[number])
    note_finished(run, number, result)


def note_finished(run: Run[ConversionReport], number: int, result: Reader) -> None:
    """Notes the report of a target that an earlier run finished; errors as for ``finished_identity``."""
    from reshard.conversion.identity import finished_identity

    target, folder = run.targets[number], locate(result.uri)
    warnings: tuple[str, ...] = ()
    with about_target(target.target if len(run.targets) > 1 else None):
        identity = finished_identity(run.chosen, target, result, run.progress.listener)
    is_asked = target.identity not in (None, "none")
    if is_asked and folder.is_folder() and not (folder.view() / IDENTITY_NAME).exists():
        warnings = (
            f"{target.target!r} was finished before, without an identity; record it with reshard identify --write, or make the target again "
            "(overwrite)",
        )
    ends = (run.source, target.target)
    run.reports[number] = finished_report(*ends, result, run.seconds, identity, warnings)


def open_and_plan(
    run: Run[Any], report: Found, features: Sequence[Feature] = (), *, by_hosts: bool = False
) -> JointPlan:
    """Opens the source and plans; a target that another run published meanwhile counts as finished."""
    while True:
        try:
            return plan_targets(
                run.chosen,
                run.targets,
                set(run.reports),
                run.executor,
                by_hosts=by_hosts,
                features=features,
            )
        except TargetExistsError:
            if not find_finished(run, report):
                raise


def to_carry_out(run: Run[Any], plan: JointPlan) -> list[TargetPlan]:
    """The targets that are not there yet, with the keys of their conversions."""
    return [target.keyed(run.keys[target.number]) for target in plan.left]


def _is_published_meanwhile(run: Run[ConversionReport], target: OpenTarget) -> bool:
    """Reports a target that another run of this conversion published while this one planned."""
    planned = target.planned
    result = None if planned.target.overwrite else open_result(str(planned.place), planned.key)
    if result is None:
        return False
    abort_own(target.transaction, planned.key)
    note_finished(run, planned.number, result)
    return True


def _begin(target: OpenTarget) -> None:
    """Begins a target, or resumes an earlier run to it, unless another program or parts of a conversion have it."""
    planned, options = target.planned, target.planned.target
    check_new(planned.place, overwrite=options.overwrite, file=planned.file)
    if target.transaction.has_parts():
        if not options.restart:
            raise ResumeError(
                f"parts of a conversion to {planned.place} were begun: do the others and commit them (reshard commit), remove them "
                "(reshard clean), or start over (restart)"
            )
        remove_parts(planned.place, options.state)
    begin_or_resume(target)


def do_tasks(
    run: Run[Any], plan: JointPlan, targets: Sequence[OpenTarget], part: Part = ALL
) -> None:
    """Runs the tasks that are left of a part of the plan, and records them."""
    total, runs = plan.total, targets_by_number(run, targets)
    batches = task_batches(total, [plan.reader], runs, part)
    with ExitStack() as unfinished:
        for target in targets:
            if target.output.uploads is not None:
                unfinished.callback(target.output.uploads.abort)
        limits = (total.max_memory, total.workers)
        run.read_bytes = run_batches(batches, runs, *limits, run.executor, total.processes)


def targets_by_number(run: Run[Any], targets: Sequence[OpenTarget]) -> list[TargetRun | None]:
    """The open targets at their numbers in the run; None for one that needs no task."""
    runs: list[TargetRun | None] = [None] * len(run.targets)
    for target in targets:
        runs[target.planned.number] = target
    return runs


def prove_and_publish(run: Run[ConversionReport], plan: JointPlan, target: OpenTarget) -> None:
    """Proves a target, makes it appear now that all of its bytes are proven, and notes its report."""
    planned = target.planned
    with about_target(planned.name):
        results, members = finish_target(run, plan, target)
        if run.before_publish is not None:
            run.before_publish(str(planned.place))
        publish_target(target)
        removed_once_published(target)
    run.reports[planned.number] = made_report(target, results, run.seconds, members)
