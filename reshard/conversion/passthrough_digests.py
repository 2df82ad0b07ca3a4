"""Checks the digests of tensors copied encoded from a source that recorded digests but no chunk checksums.

Nothing else shows whether their bytes changed since then, so they are read and decoded for that alone.
"""

from __future__ import annotations

from collections.abc import Sequence

from reshard.engine.accumulator import MoveResult
from reshard.engine.limits import Limits
from reshard.engine.read_digests import check_memory, tensor_digests
from reshard.formats.base import Reader
from reshard.planning.move import Plan


def check_unseen_memory(plan: Plan, reader: Reader, limits: Limits) -> None:
    """Raises MemoryBudgetError now for tensors that could not be read after everything was written."""
    unseen = (reader.tensors[name] for name in _unseen(plan, reader))
    check_memory(((t.spec, t.encoding) for t in unseen), limits)


def with_unseen_digests(
    plan: Plan, reader: Reader, results: Sequence[MoveResult], limits: Limits
) -> list[str | None]:
    """The digest of each move's source as it is stored now; None where it was not read and has no record."""
    unseen = _unseen(plan, reader)
    found = tensor_digests(reader, limits, unseen) if unseen else {}
    return [
        result.source_digest or found.get(move.placement.source)
        for move, result in zip(plan.moves, results, strict=True)
    ]


def _unseen(plan: Plan, reader: Reader) -> set[str]:
    copied = {m.placement.source for m in plan.moves if m.strategy == "copy"}
    return {
        name
        for name in copied
        if reader.tensors[name].digest and not reader.tensors[name].encoding.checksum
    }
