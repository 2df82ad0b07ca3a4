"""Converts from end to end: prepares, writes to staging folders, publishes by renames.

A journal records what is done, so that the next run resumes an interrupted one. With several targets the source is read once, and each target has a
staging folder, a journal and a ledger of its own; they are published one after the other, since no
file system renames several folders in one step.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from reshard.conversion.check_target import CheckedOptions, CheckedTarget
from reshard.conversion.finish import FinishedTarget, finish
from reshard.conversion.make_report import already_done, conversion_report
from reshard.conversion.passthrough_digests import check_unseen_memory
from reshard.conversion.prepare import MultiPrepared, prepare_multi
from reshard.conversion.read_back import check_read_back
from reshard.conversion.report import ConversionReport, MultiReport
from reshard.conversion.resume.already_done import dissolve_own, open_result, remove_leftovers
from reshard.conversion.resume.cleanup import Open, kept_where_useful, removed_once_published
from reshard.conversion.resume.identity import Identity, identify, source_state
from reshard.conversion.resume.resume import StartedRun, Work, begin
from reshard.conversion.space import check_space
from reshard.conversion.target_job import TargetJob, absolute, target_job_of
from reshard.conversion.total_progress import TotalProgress
from reshard.engine.accumulator import Accumulator
from reshard.engine.error_context import about_target
from reshard.engine.limits import Limits
from reshard.engine.open_target import OpenTarget
from reshard.engine.progress import Progress
from reshard.engine.run import Books, run_multi
from reshard.engine.task_stream import Ends, ToFill, multi_batches
from reshard.errors import PlanError, TargetExistsError
from reshard.formats.base import Reader
from reshard.formats.orbax.write.writer import open_writer
from reshard.formats.registry import local_path, refuse_other_content, target_path
from reshard.planning.multi_plan import MultiPlan
from reshard.storage.publishing import publish
from reshard.storage.staging import held
from reshard.storage.target_checks import check_apart, check_new

Tell = Callable[[Progress], None]


def convert(
    source: str,
    target: str,
    options: CheckedOptions,
    executor: Executor | None = None,
    progress: Tell | None = None,
    before_publish: Callable[[str], None] | None = None,
    *,
    restart: bool = False,
) -> ConversionReport:
    """Converts, resumes an interrupted run of the same conversion, or finds that it is done.

    The target appears whole or not at all. With ``restart`` nothing that an unfinished run left is used.
    """
    wanted = [CheckedTarget(target, options, restart)]
    return convert_multi(source, wanted, executor, progress, before_publish).reports[0]


def convert_multi(
    source: str,
    wanted: Sequence[CheckedTarget],
    executor: Executor | None = None,
    progress: Tell | None = None,
    before_publish: Callable[[str], None] | None = None,
) -> MultiReport:
    """Converts to several targets from one reading of the source; each as ``convert`` alone would.

    Every target appears whole or not at all, one after the other once all tasks are done.
    """
    _refuse_no_executor(executor)
    started = time.monotonic()
    given = local_path(source), [target_path(one.target) for one in wanted]
    check_apart([Path(target) for target in given[1]])
    wanted = [replace(one, target=path) for one, path in zip(wanted, given[1], strict=True)]
    source, wanted = absolute(given[0], wanted)
    # Before anything of the source is read: what is read is at least as new as this.
    files = source_state(source)
    identities = [identify(source, one.options, files) for one in wanted]
    run = _Run(source, len(wanted), executor, progress, before_publish, started)
    _find_finished(run, wanted, identities)
    if len(run.reports) < len(wanted):
        _carry_out(run, wanted, identities)
    reports = (run.reports[number] for number in range(len(wanted)))
    named = (
        replace(report, source=given[0], target=target)
        for report, target in zip(reports, given[1], strict=True)
    )
    return MultiReport(given[0], tuple(named), run.read_bytes, run.seconds)


def _refuse_no_executor(executor: Any) -> None:
    if not isinstance(executor, Executor | None):
        raise PlanError(
            f"executor is {executor!r}; expected a concurrent.futures.Executor, or None for threads"
        )


class _Run(Struct):
    """What all targets of a run have in common, and what became of each.

    Attributes:
        read_bytes: encoded bytes that this run read of the source, for all targets together.
    """

    source: str
    targets: int
    executor: Executor | None
    progress: Tell | None
    before_publish: Callable[[str], None] | None
    started: float
    reports: dict[int, ConversionReport] = field(default_factory=dict)
    read_bytes: int = 0

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.started

    def name(self, target: str) -> str | None:
        """What errors call a target."""
        return target if self.targets > 1 else None

    def tell_finished(self, number: int, target: str, result: Reader) -> None:
        """Reports a target as finished before."""
        tensors = result.tensors.values()
        self.reports[number] = already_done(self.source, target, tensors, self.seconds)


def _find_finished(
    run: _Run, wanted: Sequence[CheckedTarget], identities: Sequence[Identity]
) -> bool:
    """Reports further targets that are the finished results of this very conversion, if there are any."""
    before = len(run.reports)
    for number, (one, identity) in enumerate(zip(wanted, identities, strict=True)):
        if number in run.reports or one.options.overwrite:
            continue
        if (result := open_result(one.target, identity)) is not None:
            remove_leftovers(Path(one.target), identity)
            run.tell_finished(number, one.target, result)
    return len(run.reports) > before


def _prepare(
    run: _Run, wanted: Sequence[CheckedTarget], identities: Sequence[Identity]
) -> MultiPrepared:
    """Plans what is to do; a target may be published by another run of this conversion meanwhile."""
    while True:
        try:
            return prepare_multi(run.source, wanted, run.reports)
        except TargetExistsError:
            if not _find_finished(run, wanted, identities):
                raise


def _carry_out(run: _Run, wanted: Sequence[CheckedTarget], identities: Sequence[Identity]) -> None:
    prepared = _prepare(run, wanted, identities)
    orders = {
        number: target_job_of(
            prepared.targets[number], one, identities[number], run.name(one.target)
        )
        for number, one in enumerate(wanted)
        if number not in run.reports
    }
    new = [order for order in orders.values() if not os.path.lexists(order.staging_folder)]
    check_space(new, {})
    limits = Limits(prepared.joint.max_memory, prepared.joint.workers, run.executor)
    ends = {number: _ends(order, limits) for number, order in orders.items()}
    tally = None if run.progress is None else TotalProgress(run.progress)
    opened: list[Open] = []
    with ExitStack() as locks, kept_where_useful(opened, run.targets):
        targets = []
        for number, order in orders.items():
            with about_target(order.name):
                staging = locks.enter_context(held(order.path))
                if (result := _published_meanwhile(order)) is not None:
                    dissolve_own(staging, order.identity)
                    run.tell_finished(number, str(order.path), result)
                    continue
            tell = None if tally is None else tally.of(number)
            ledger = Accumulator(order.summary.plan, ends[number], str(staging.root), tell)
            if tally is not None:
                tally.expect(number, ledger.total_bytes, order.summary.plan.tasks)
            opened.append(Open(staging, ledger))
            targets.append(_Target(number, order, ends[number], opened[-1], tell))
        if targets:
            _write(run, targets, prepared.joint)
            _publish(run, targets, FinishedTarget(limits, run.progress, _syncing(tally)))


def _published_meanwhile(order: TargetJob) -> Reader | None:
    """The target, where another run of this conversion published it while this one was prepared."""
    return None if order.options.overwrite else open_result(str(order.path), order.identity)


class _Target(Struct, frozen=True):
    """A target that a run writes.

    Attributes:
        number: its place among those that were asked for.
        tell: told what is done of it.
    """

    number: int
    order: TargetJob
    ends: Ends
    open: Open
    tell: Tell | None


def _ends(order: TargetJob, limits: Limits) -> Ends:
    """Where the tasks of a target read and write; refuses what could not be proved at the end."""
    reader, plan, checkpoint = (
        order.prepared.reader,
        order.summary.plan,
        order.prepared.target.checkpoint,
    )
    with about_target(order.name):
        if order.options.check == "readback":
            check_read_back(plan, reader, checkpoint, limits)
        check_unseen_memory(plan, reader, limits)
        writer = open_writer(checkpoint, ocdbt=order.options.ocdbt)
    return Ends(reader, writer, {name: t.encoding for name, t in checkpoint.tensors.items()})


def _syncing(tally: TotalProgress | None) -> Callable[[], None]:
    return (lambda: None) if tally is None else partial(tally.end, "syncing")


def _write(run: _Run, targets: Sequence[_Target], plan: MultiPlan) -> None:
    """Does what is left to do, and records it."""
    with ExitStack() as journals:
        begun = {target.number: _begin(target, journals) for target in targets}
        there = {t.order.prepared.path: t.open.ledger.written_bytes for t in targets}
        check_space([target.order for target in targets], there)
        books: list[Books | None] = [None] * run.targets
        to_fill = [ToFill(targets[0].ends, is_finished=True)] * run.targets
        for target in targets:
            journal = begun[target.number].journal
            root = str(target.open.staging.root)
            output = OpenTarget(root, target.ends.writer.put, target.order.name)
            books[target.number] = Books(output, target.open.ledger, journal.append)
            to_fill[target.number] = ToFill(target.ends, begun[target.number].done)
        batches = multi_batches(plan, to_fill)
        run.read_bytes = run_multi(batches, books, plan.max_memory, plan.workers, run.executor)


def _begin(target: _Target, journals: ExitStack) -> StartedRun:
    order, staging = target.order, target.open.staging
    with about_target(order.name):
        check_new(staging.target, overwrite=order.options.overwrite)
        plan, ledger = order.summary.plan, target.open.ledger
        work = Work(order.identity, plan, target.ends, ledger, target.tell)
        begun = begin(staging, work, restart=order.restart)
    target.open.staging, target.open.is_begun = begun.staging, True
    journals.enter_context(closing(begun.journal))
    return begun


def _publish(run: _Run, targets: Sequence[_Target], finishing: FinishedTarget) -> None:
    """Each target appears once all of its bytes are proven."""
    for target in targets:
        order, staging = target.order, target.open.staging
        with about_target(order.name):
            results = target.open.ledger.results()
            results = finish(order, target.ends, staging.root, results, finishing)
            if run.before_publish is not None:
                run.before_publish(str(order.path))
            publish(staging, overwrite=order.options.overwrite, check=refuse_other_content)
            removed_once_published(target.open)
        resumed = target.open.ledger.resumed_bytes
        run.reports[target.number] = conversion_report(
            order.prepared, results, order.options, run.seconds, resumed
        )
