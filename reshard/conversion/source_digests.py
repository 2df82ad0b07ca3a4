"""Compares the digests of a conversion with the digests that the source recorded.

A tensor that is copied encoded is read for its digest where no checksum protects its bytes. For a tensor whose
target has the same bytes, the target's digest is compared.
"""

from __future__ import annotations

from collections.abc import Sequence

from reshard.conversion.passthrough_digests import with_unseen_digests
from reshard.engine.accumulator import MoveResult
from reshard.engine.limits import Limits
from reshard.engine.read_digests import tensor_digests
from reshard.errors import CorruptError, MemoryBudgetError, VerificationError
from reshard.formats.base import Reader
from reshard.planning.move import Move, Plan


def check_recorded(
    plan: Plan, reader: Reader, results: Sequence[MoveResult], limits: Limits
) -> None:
    """Compares every move's digest with the one that its source recorded, if it recorded any.

    Raises CorruptError where the source changed since, VerificationError where something else was written.
    """
    stored = with_unseen_digests(plan, reader, results, limits)
    for move, found in zip(plan.moves, stored, strict=True):
        recorded = reader.tensors[move.placement.source].digest
        if recorded and found and recorded != found:
            raise _difference(move, reader, found, limits)


def _difference(
    move: Move, reader: Reader, found: str, limits: Limits
) -> CorruptError | VerificationError:
    """The error, of the source or of the output: the source is read once more to tell which.

    Raises CorruptError, naming the chunk, where one of the source does not have its own checksum.
    """
    name, target = move.placement.source, move.placement.target
    recorded = reader.tensors[name].digest
    try:
        now = tensor_digests(reader, limits, [name])[name]
    except MemoryBudgetError:
        return VerificationError(
            f"{target!r}: what was written has digest {found}, but {recorded} was recorded of its source; the output "
            f"was discarded; run reshard verify {reader.uri} with more memory: if it finds nothing, check this machine's"
        )
    if now == recorded:
        return VerificationError(
            f"{target!r}: what was written has digest {found}, but what was read has {recorded}; the output was "
            "discarded; check this machine's memory, then run again"
        )
    return CorruptError(
        f"{name!r} in {reader.uri!r} has digest {now}, but {recorded} was recorded when it was written: "
        "its bytes changed since; restore it from another copy"
    )
