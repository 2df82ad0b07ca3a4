"""A conversion from end to end: prepare it without moving a byte, then carry it out in a staging folder."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from reshard.engine.layouts import layout_warnings
from reshard.engine.options import Options
from reshard.engine.read_back import check_read_back, read_back
from reshard.engine.read_digests import ReadLimits
from reshard.engine.record_warnings import record_warnings
from reshard.engine.report import ConversionReport, Progress, Proof, Stage, TensorReport
from reshard.engine.run import MoveResult, run
from reshard.engine.target import Target, make_target
from reshard.engine.target_folder import refuse_other_content, target_path
from reshard.engine.tasks import Ends, batches
from reshard.engine.unseen_digests import check_unseen_memory, with_unseen_digests
from reshard.errors import (
    CorruptError,
    PlanError,
    StorageError,
)
from reshard.formats.base import Reader, TargetCheckpoint
from reshard.formats.detect import local_path, open_reader
from reshard.formats.orbax.writer import open_writer
from reshard.layout.sizes import format_bytes
from reshard.layout.tensor_spec import TensorSpec
from reshard.planning.move import Move, Plan
from reshard.planning.planner import make_plan
from reshard.storage.host import free_bytes
from reshard.storage.local import storage_errors
from reshard.storage.staging import check_target, publish, staged

BYTES_PER_MOVE = 2500
"""What planning keeps in memory for each tensor (measured), besides the source's own metadata."""


@dataclass(frozen=True, slots=True)
class PlannedTensor:
    """One tensor of a plan, with both ends.

    Attributes:
        partition: strategy, amount and axis, where the target is split by count or size.
    """

    source: TensorSpec
    target: TensorSpec
    move: Move
    partition: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class ConversionPlan:
    """What a conversion will do, before it does it.

    Attributes:
        carried: leaves that are no tensors and travel along unchanged.
        dropped: leaves of the source that are left out.
        free_bytes: what the target's file system has left.
    """

    source: str
    target: str
    plan: Plan
    tensors: tuple[PlannedTensor, ...]
    carried: tuple[str, ...]
    dropped: tuple[str, ...]
    warnings: tuple[str, ...]
    free_bytes: int


@dataclass(frozen=True, slots=True)
class Prepared:
    """A plan with the open source and the target that it is about."""

    reader: Reader
    target: Target
    summary: ConversionPlan


def prepare(source: str, target: str, options: Options) -> Prepared:
    """Opens the source, plans, and refuses whatever can be refused before a byte moves."""
    source, target = local_path(source), target_path(target)
    reader = open_reader(source)
    check_target(Path(target), Path(source), overwrite=options.overwrite)
    refuse_other_content(Path(target))
    goal = make_target(reader, options)
    metadata = reader.metadata_bytes + BYTES_PER_MOVE * len(goal.requests)
    plan = make_plan(goal.requests, options.max_memory, options.workers, metadata)
    summary = ConversionPlan(
        source,
        target,
        plan,
        tuple(_planned(m, goal.checkpoint) for m in plan.moves),
        tuple(leaf.name for leaf in goal.checkpoint.leaves if not leaf.tensor),
        goal.dropped,
        (
            *layout_warnings(options.layout, list(goal.checkpoint.tensors)),
            *record_warnings(reader),
        ),
        _free_bytes(target),
    )
    return Prepared(reader, goal, summary)


def _planned(move: Move, checkpoint: TargetCheckpoint) -> PlannedTensor:
    source, target = move.source.spec, move.target.spec
    return PlannedTensor(source, target, move, checkpoint.tensors[target.name].partition)


def carry_out(
    prepared: Prepared,
    options: Options,
    executor: Executor | None = None,
    progress: Callable[[Progress], None] | None = None,
) -> ConversionReport:
    """Does what was prepared; the target appears whole or not at all."""
    _refuse_no_executor(executor)
    started = time.monotonic()
    summary = prepared.summary
    limits = ReadLimits(options.max_memory, options.workers, executor)
    _check_space(summary, options)
    if options.check == "readback":
        check_read_back(summary.plan, prepared.reader, prepared.target.checkpoint, limits)
    check_unseen_memory(summary.plan, prepared.reader, limits)
    writer = open_writer(prepared.target.checkpoint, ocdbt=options.ocdbt)
    encodings = {name: t.encoding for name, t in prepared.target.checkpoint.tensors.items()}
    ends = Ends(prepared.reader, writer, encodings)
    with staged(Path(summary.target)) as staging:
        writer.prepare(staging.root)
        results = run(
            summary.plan,
            batches(summary.plan, ends),
            ends,
            str(staging.root),
            executor,
            progress,
        )
        _check_recorded(prepared, results, limits)
        writer.finish(staging.root, _digests(prepared, results))
        if options.check == "readback":
            results = read_back(
                summary.plan, prepared.reader, results, staging.root, limits, progress
            )
        if progress is not None:
            progress(_last_progress(summary.plan, "syncing"))
        publish(staging, overwrite=options.overwrite)
    return _report(prepared, results, options, time.monotonic() - started)


def _refuse_no_executor(executor: Any) -> None:
    if not isinstance(executor, Executor | None):
        raise PlanError(
            f"executor is {executor!r}; expected a concurrent.futures.Executor, or None for threads"
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


def _proof(result: MoveResult, options: Options) -> Proof:
    if options.check == "readback":
        return "proved"
    return "encoded" if result.target_digest is None else "written"


def _report(
    prepared: Prepared, results: list[MoveResult], options: Options, seconds: float
) -> ConversionReport:
    summary = prepared.summary
    return ConversionReport(
        summary.source,
        summary.target,
        tuple(
            _tensor_report(move, result, _proof(result, options))
            for move, result in zip(summary.plan.moves, results, strict=True)
        ),
        read_bytes=sum(r.read_bytes for r in results),
        moved_bytes=sum(r.moved_bytes for r in results),
        written_bytes=sum(r.written_bytes for r in results),
        seconds=seconds,
        warnings=summary.warnings,
    )


def _tensor_report(move: Move, result: MoveResult, proof: Proof) -> TensorReport:
    placement = move.placement
    return TensorReport(
        placement.source,
        placement.target,
        move.target.spec.shape,
        placement.source_dtype,
        placement.target_dtype,
        move.strategy,
        move.target.spec.nbytes,
        result.source_digest,
        result.target_digest,
        proof,
        result.cast if placement.is_cast else None,
    )


def _free_bytes(target: str) -> int:
    with storage_errors("look at", target):
        return free_bytes(Path(target).absolute().parent)


def _check_space(summary: ConversionPlan, options: Options) -> None:
    """Raw output has a known size; compressed output may be smaller, so it is not judged."""
    if options.encoding is None or options.encoding.compressor != "none":
        return
    need = summary.plan.written_bytes
    if need > summary.free_bytes:
        raise StorageError(
            f"{summary.target!r} needs {format_bytes(need)}, but its file system has only "
            f"{format_bytes(summary.free_bytes)} free; free space, choose another target, or narrow what is "
            "converted (select, cast)"
        )
