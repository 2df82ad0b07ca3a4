"""Does one part of a conversion, on a host of its own; ``commit_parts`` puts all of them together.

Every part makes the same plan, and takes its share of the units (``engine.share``). It keeps what it did in a folder of its
own, with its own lock and journal, and resumes from that. Its last record says that it is done, and follows a sync.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from contextlib import closing

from msgspec.structs import replace

from reshard.conversion.check_target import CheckedTarget
from reshard.conversion.parts.request import PartsRequest, parse_request, refuse_other
from reshard.conversion.prepare import local_paths, plan_targets
from reshard.conversion.report import PartReport
from reshard.conversion.resume.already_done import open_result
from reshard.conversion.resume.cleanup import kept_where_useful
from reshard.conversion.resume.identity import Identity, identify, source_state
from reshard.conversion.resume.resume import begin_or_resume
from reshard.conversion.target_job import OpenTarget, TargetJob, open_output, target_jobs
from reshard.engine.books import Books
from reshard.engine.progress import Progress
from reshard.engine.run import run_batches
from reshard.engine.share import Share
from reshard.engine.task_stream import share_units, task_batches
from reshard.errors import PlanError, SourceChangedError
from reshard.formats.checkpoint_path import CheckpointPath
from reshard.planning.multi_plan import MultiPlan
from reshard.storage.location import locate
from reshard.storage.parts import Part, claim_request, held_part, part_root, seal_part


def convert_part(
    chosen: CheckpointPath,
    target: CheckedTarget,
    part: Part,
    plain: dict[str, object],
    progress: Callable[[Progress], None] | None = None,
) -> PartReport:
    """Does a part, or what is left of it. ``plain``: the options as all parts must give them."""
    started = time.monotonic()
    source, (target,) = local_paths(chosen.path, [target])
    chosen = replace(chosen, path=str(chosen.root))
    _refuse_overwriting(target)
    found = source_state(chosen.root)
    identity = identify(chosen.path, target.options, found, chosen.unlisted)
    report = PartReport(source, target.target, str(part))
    if open_result(target.target, identity) is not None and not target.options.overwrite:
        return replace(report, already_done=True, seconds=time.monotonic() - started)
    planned = plan_targets(chosen, [target], by_hosts=True)
    (job,) = target_jobs(planned, [target], [identity], {})
    output = replace(open_output(job, planned.limits(None)), root=part_root(job.place, part))
    _agree(job, part, plain, chosen)
    options, share = job.options, Share(part.number, part.count)
    held = held_part(job.place, part, unsafe=options.unsafe_commit, state=options.state)
    opened: list[OpenTarget] = []
    with held as transaction, kept_where_useful(opened):
        books = Books(job.plan, output, progress)
        if output.uploads is not None:
            output.uploads.check = transaction.check
        running = OpenTarget(job, transaction, output, books, progress)
        opened.append(running)
        _expect(running, planned.summary.total, share)
        with closing(transaction):
            begin_or_resume(running, prepares=False)
            read_bytes = _run(running, planned.summary.total, share)
            _refuse_changed(chosen, identity, source)
            seal_part(job.place, part, transaction, json.dumps({"sealed": str(part)}))
    return replace(
        report,
        tasks=books.tasks_done,
        moved_bytes=books.moved_bytes,
        read_bytes=read_bytes,
        written_bytes=books.written_bytes,
        resumed_bytes=books.resumed_bytes,
        seconds=time.monotonic() - started,
        warnings=job.summary.warnings,
    )


def _refuse_overwriting(target: CheckedTarget) -> None:
    if target.options.overwrite and not locate(target.target).traits.renames:
        raise PlanError(
            f"parts do not overwrite the target {target.target} in a bucket, where each would have to remove it first; remove it, or choose "
            "another name"
        )


def _agree(job: TargetJob, part: Part, plain: dict[str, object], chosen: CheckpointPath) -> None:
    """Records what all parts must agree on, or refuses this one where it is of another conversion."""
    options = job.options
    ours = PartsRequest(
        part.count,
        chosen.path,
        options.max_memory,
        options.workers,
        job.identity,
        plain,
        chosen.unlisted,
    )
    place = str(job.place)
    recorded = claim_request(job.place, ours.render(), options.state)
    refuse_other(parse_request(recorded, place), ours, place)


def _expect(target: OpenTarget, plan: MultiPlan, share: Share) -> None:
    """Counts what is to do to that of the part."""
    units = list(share_units(plan, [target.job.reader], target.run, share))
    tensors = target.job.plan.tensors
    total_bytes = sum(tensors[tensor].unit_bytes(unit) for tensor, unit in units)
    target.books.expect(total_bytes, len(units))


def _run(target: OpenTarget, plan: MultiPlan, share: Share) -> int:
    """Carries out what is left of the part; the bytes that were read."""
    target.output = replace(target.output, elsewhere=target.transaction.open_elsewhere())
    batches = task_batches(plan, [target.job.reader], [target.run], share)
    try:
        return run_batches(
            batches, [target.run], plan.max_memory, plan.workers, None, plan.processes
        )
    finally:
        if target.output.uploads is not None:
            target.output.uploads.abort()
        target.transaction.close_elsewhere()


def _refuse_changed(chosen: CheckpointPath, identity: Identity, source: str) -> None:
    if source_state(locate(chosen.path)) != identity.files:
        raise SourceChangedError(
            f"the source {source!r} changed while it was read; what this part did was discarded; run again when nothing writes to it"
        )
