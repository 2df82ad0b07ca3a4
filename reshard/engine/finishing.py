"""Finishing one target after its last task: what is no tensor, every proof that was asked for, its place."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from reshard.engine.identity import source_state
from reshard.engine.ledger import MoveResult
from reshard.engine.order import Order
from reshard.engine.read_back import read_back
from reshard.engine.read_digests import ReadLimits
from reshard.engine.report import Progress
from reshard.engine.stored import check_stored
from reshard.engine.tasks import Ends
from reshard.engine.unseen_digests import with_unseen_digests
from reshard.errors import CorruptError, SourceChangedError


@dataclass(frozen=True, slots=True)
class Finishing:
    """What finishing takes.

    Attributes:
        syncing: told when only syncing is left.
    """

    limits: ReadLimits
    progress: Callable[[Progress], None] | None
    syncing: Callable[[], None]


def finish(
    order: Order, ends: Ends, root: Path, results: list[MoveResult], finishing: Finishing
) -> list[MoveResult]:
    """Writes what is no tensor, and makes sure of what was asked to be made sure of."""
    plan, reader = order.summary.plan, order.prepared.reader
    _check_recorded(order, results, finishing.limits)
    check_stored(plan, ends, root)
    ends.writer.finish(root, _digests(order, results))
    if order.options.check == "readback":
        results = read_back(plan, reader, results, root, finishing.limits, finishing.progress)
    _refuse_changed_source(order)
    finishing.syncing()
    return results


def _refuse_changed_source(order: Order) -> None:
    if source_state(order.identity.source) != order.identity.files:
        raise SourceChangedError(
            f"the source {order.summary.source!r} changed while it was read: the names, sizes or times of its files "
            "are not what they were; the output was discarded; run again when nothing writes to it"
        )


def _check_recorded(order: Order, results: list[MoveResult], limits: ReadLimits) -> None:
    """What was read must be what the source recorded of itself, if it recorded anything."""
    plan, reader = order.summary.plan, order.prepared.reader
    stored = with_unseen_digests(plan, reader, results, limits)
    for move, found in zip(plan.moves, stored, strict=True):
        recorded = reader.tensors[move.placement.source].digest
        if recorded and found and recorded != found:
            raise CorruptError(
                f"{move.placement.source!r} in {order.summary.source!r} has digest {found}, but "
                f"{recorded} was recorded when it was written: its bytes changed since; restore it from another copy"
            )


def _digests(order: Order, results: list[MoveResult]) -> dict[str, str]:
    """Each target tensor's digest; one that travelled encoded keeps what its source recorded."""
    digests: dict[str, str] = {}
    for move, result in zip(order.summary.plan.moves, results, strict=True):
        recorded = order.prepared.reader.tensors[move.placement.source].digest
        digest = result.target_digest or recorded
        if digest is not None:
            digests[move.placement.target] = digest
    return digests
