"""A conversion from end to end: prepared, carried out in a staging folder, published by one rename.

What is done is recorded in a journal as it is done, so that a run which ends early, however it ends,
is gone on with by the next one.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from concurrent.futures import Executor
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from reshard.engine.conversion import ConversionPlan, Prepared, prepare, space_left
from reshard.engine.conversion_report import already_done, conversion_report
from reshard.engine.finished import dissolve_own, is_result, remove_leftovers
from reshard.engine.identity import Identity, identify, plan_digest, source_state
from reshard.engine.ledger import Ledger, MoveResult
from reshard.engine.options import Options
from reshard.engine.read_back import check_read_back, read_back
from reshard.engine.read_digests import ReadLimits
from reshard.engine.report import ConversionReport, Progress, Stage
from reshard.engine.resume import Work, begin
from reshard.engine.run import run
from reshard.engine.stored import check_stored
from reshard.engine.target_folder import refuse_other_content, target_path
from reshard.engine.tasks import Ends, batches
from reshard.engine.unfinished import kept_where_useful
from reshard.engine.unseen_digests import check_unseen_memory, with_unseen_digests
from reshard.errors import CorruptError, PlanError, SourceChangedError, StorageError
from reshard.formats.base import Writer
from reshard.formats.detect import local_path
from reshard.formats.orbax.writer import open_writer
from reshard.layout.sizes import format_bytes
from reshard.planning.move import Plan
from reshard.storage.staging import Staging, check_new, held, publish, staging_for


@dataclass(frozen=True, slots=True)
class Order:
    """A prepared conversion, and how it is to be carried out."""

    prepared: Prepared
    options: Options
    identity: Identity
    executor: Executor | None
    progress: Callable[[Progress], None] | None
    restart: bool

    @property
    def limits(self) -> ReadLimits:
        return ReadLimits(
            self.prepared.summary.plan.max_memory, self.options.workers, self.executor
        )


def convert(
    source: str,
    target: str,
    options: Options,
    executor: Executor | None = None,
    progress: Callable[[Progress], None] | None = None,
    *,
    restart: bool = False,
) -> ConversionReport:
    """Converts, goes on with an unfinished run of the same conversion, or finds that it is done.

    The target appears whole or not at all. With ``restart`` nothing that an unfinished run left is used.
    """
    _refuse_no_executor(executor)
    started = time.monotonic()
    given = local_path(source), target_path(target)
    # A worker of the executor may stand in another folder, and the caller's may change meanwhile.
    source, target = (str(Path(path).absolute()) for path in given)
    # Before anything of the source is read: what is read is at least as new as this.
    identity = identify(source, options)
    if not options.overwrite and is_result(target, identity):
        remove_leftovers(Path(target), identity)
        report = already_done(source, target, time.monotonic() - started)
    else:
        prepared = prepare(source, target, options)
        report = _carry_out(
            _order(prepared, options, identity, executor, progress, restart), started
        )
    return replace(report, source=given[0], target=given[1])


def _refuse_no_executor(executor: Any) -> None:
    if not isinstance(executor, Executor | None):
        raise PlanError(
            f"executor is {executor!r}; expected a concurrent.futures.Executor, or None for threads"
        )


def _order(
    prepared: Prepared,
    options: Options,
    identity: Identity,
    executor: Executor | None,
    progress: Callable[[Progress], None] | None,
    restart: bool,
) -> Order:
    """With the plan in the identity, and the identity in what will be written."""
    checkpoint = replace(prepared.target.checkpoint, conversion=identity.output)
    planned = replace(identity, plan=plan_digest(prepared.summary.plan, checkpoint, options))
    prepared = replace(prepared, target=replace(prepared.target, checkpoint=checkpoint))
    return Order(prepared, options, planned, executor, progress, restart)


def _carry_out(order: Order, started: float) -> ConversionReport:
    summary, options, target = order.prepared.summary, order.options, order.prepared.target
    if not os.path.lexists(staging_for(Path(summary.target)).folder):
        _check_space(summary, options, summary.free_bytes, 0)
    if options.check == "readback":
        check_read_back(summary.plan, order.prepared.reader, target.checkpoint, order.limits)
    check_unseen_memory(summary.plan, order.prepared.reader, order.limits)
    writer = open_writer(target.checkpoint, ocdbt=options.ocdbt)
    encodings = {name: t.encoding for name, t in target.checkpoint.tensors.items()}
    ends = Ends(order.prepared.reader, writer, encodings)
    with held(Path(summary.target)) as staging:
        if not options.overwrite and is_result(summary.target, order.identity):
            # another run published it while this one was prepared
            dissolve_own(staging, order.identity)
            return already_done(summary.source, summary.target, time.monotonic() - started)
        ledger = Ledger(summary.plan, ends, str(staging.root), order.progress)
        with kept_where_useful(staging, ledger):
            results = _written(order, staging, ends, ledger)
    seconds = time.monotonic() - started
    return conversion_report(order.prepared, results, options, seconds, ledger.resumed_bytes)


def _written(order: Order, staging: Staging, ends: Ends, ledger: Ledger) -> list[MoveResult]:
    """Does what is left to do, and publishes the target."""
    summary, options = order.prepared.summary, order.options
    check_new(staging.target, overwrite=options.overwrite)
    work = Work(order.identity, summary.plan, ends, ledger, order.progress)
    begun = begin(staging, work, restart=order.restart)
    with closing(begun.journal) as journal:
        _check_space(summary, options, space_left(summary.target), ledger.written_bytes)
        results = run(
            summary.plan,
            batches(summary.plan, ends, begun.done),
            ends,
            str(staging.root),
            order.executor,
            order.progress,
            ledger,
            journal.append,
        )
    _check_recorded(order.prepared, results, order.limits)
    check_stored(summary.plan, ends, staging.root)
    results = _ended(order, begun.staging, ends.writer, results)
    publish(begun.staging, overwrite=options.overwrite, check=refuse_other_content)
    return results


def _ended(
    order: Order, staging: Staging, writer: Writer, results: list[MoveResult]
) -> list[MoveResult]:
    """Writes what is no tensor, and makes sure of what was asked to be made sure of."""
    prepared, progress = order.prepared, order.progress
    plan = prepared.summary.plan
    writer.finish(staging.root, _digests(prepared, results))
    if order.options.check == "readback":
        results = read_back(plan, prepared.reader, results, staging.root, order.limits, progress)
    _refuse_changed_source(order)
    if progress is not None:
        progress(_last_progress(plan, "syncing"))
    return results


def _refuse_changed_source(order: Order) -> None:
    source = order.prepared.summary.source
    if source_state(order.identity.source) != order.identity.files:
        raise SourceChangedError(
            f"the source {source!r} changed while it was read: the names, sizes or times of its files are not what "
            "they were; the output was discarded; run again when nothing writes to it"
        )


def _check_recorded(prepared: Prepared, results: list[MoveResult], limits: ReadLimits) -> None:
    """What was read must be what the source recorded of itself, if it recorded anything."""
    plan, reader = prepared.summary.plan, prepared.reader
    stored = with_unseen_digests(plan, reader, results, limits)
    for move, found in zip(plan.moves, stored, strict=True):
        recorded = reader.tensors[move.placement.source].digest
        if recorded and found and recorded != found:
            raise CorruptError(
                f"{move.placement.source!r} in {prepared.summary.source!r} has digest {found}, but "
                f"{recorded} was recorded when it was written: its bytes changed since; restore it from another copy"
            )


def _last_progress(plan: Plan, stage: Stage) -> Progress:
    total = sum(m.placement.source_box.size * m.source.spec.itemsize for m in plan.moves)
    return Progress(total, total, plan.tasks, plan.tasks, "", stage)


def _digests(prepared: Prepared, results: list[MoveResult]) -> dict[str, str]:
    """Each target tensor's digest; one that travelled encoded keeps what its source recorded."""
    digests: dict[str, str] = {}
    for move, result in zip(prepared.summary.plan.moves, results, strict=True):
        recorded = prepared.reader.tensors[move.placement.source].digest
        digest = result.target_digest or recorded
        if digest is not None:
            digests[move.placement.target] = digest
    return digests


def _check_space(
    summary: ConversionPlan, options: Options, free_bytes: int, there_bytes: int
) -> None:
    """Raw output has a known size; compressed output may be smaller, so it is not judged.

    ``there_bytes`` of it were written by an earlier run.
    """
    if options.encoding is None or options.encoding.compressor != "none":
        return
    need = summary.plan.written_bytes - there_bytes
    if need > free_bytes:
        raise StorageError(
            f"{summary.target!r} needs {format_bytes(need)}, but its file system has only "
            f"{format_bytes(free_bytes)} free; free space, choose another target, or narrow what is "
            "converted (select, cast)"
        )
