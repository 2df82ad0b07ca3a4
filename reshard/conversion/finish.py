"""Finishes one target after its last task: copies other items, proves it, publishes it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from msgspec import Struct

from reshard.conversion.completeness import check_stored
from reshard.conversion.read_back import read_back
from reshard.conversion.resume.identity import source_state
from reshard.conversion.source_digests import check_recorded
from reshard.conversion.target_job import TargetJob
from reshard.engine.accumulator import MoveResult
from reshard.engine.limits import Limits
from reshard.engine.progress import Progress
from reshard.engine.task_stream import Ends
from reshard.errors import SourceChangedError


class FinishedTarget(Struct, frozen=True):
    """What finishing takes.

    Attributes:
        syncing: told when only syncing is left.
    """

    limits: Limits
    progress: Callable[[Progress], None] | None
    syncing: Callable[[], None]


def finish(
    order: TargetJob, ends: Ends, root: Path, results: list[MoveResult], finishing: FinishedTarget
) -> list[MoveResult]:
    """Writes what is no tensor, and makes sure of what was asked to be made sure of."""
    plan, reader = order.summary.plan, order.prepared.reader
    check_recorded(plan, reader, results, finishing.limits)
    check_stored(plan, ends, root)
    ends.writer.finish(root, _digests(order, results))
    if order.options.check == "readback":
        results = read_back(plan, reader, results, root, finishing.limits, finishing.progress)
    _refuse_changed_source(order)
    finishing.syncing()
    return results


def _refuse_changed_source(order: TargetJob) -> None:
    if source_state(order.identity.source) != order.identity.files:
        raise SourceChangedError(
            f"the source {order.summary.source!r} changed while it was read: the names, sizes or times of its files "
            "are not what they were; the output was discarded; run again when nothing writes to it"
        )


def _digests(order: TargetJob, results: list[MoveResult]) -> dict[str, str]:
    """Each target tensor's digest; one that travelled encoded keeps what its source recorded."""
    digests: dict[str, str] = {}
    for move, result in zip(order.summary.plan.moves, results, strict=True):
        recorded = order.prepared.reader.tensors[move.placement.source].digest
        digest = result.target_digest or recorded
        if digest is not None:
            digests[move.placement.target] = digest
    return digests
