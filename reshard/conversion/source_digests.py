"""Compares the digests of a conversion with the digests that the source recorded.

Most digests are taken while tensors are moved. A tensor that is copied encoded is not decoded: where its chunks have no
checksum, nothing else shows whether its bytes changed, and it is read again at the end for its digest alone.
"""

from __future__ import annotations

from collections.abc import Sequence

from reshard.engine.limits import Limits
from reshard.engine.read_digests import check_memory, tensor_digests
from reshard.engine.tensor_book import TensorResult
from reshard.errors import CorruptError, MemoryBudgetError, VerificationError
from reshard.formats.base import Reader
from reshard.planning.tensor_plan import Plan, TensorPlan


def check_recorded(
    plan: Plan, reader: Reader, results: Sequence[TensorResult], limits: Limits
) -> None:
    """Compares the digest of every tensor's source with the one that the source recorded, if it recorded any.

    Raises CorruptError where the source changed since, VerificationError where something else was written.
    """
    stored = _with_unseen_digests(plan, reader, results, limits)
    for tensor, found in zip(plan.tensors, stored, strict=True):
        if found is None:
            continue
        recorded = reader.tensors[tensor.piece.source].digest
        if recorded and recorded != found:
            raise _difference(tensor, reader, found, limits)


def _difference(
    tensor: TensorPlan, reader: Reader, found: str, limits: Limits
) -> CorruptError | VerificationError:
    """The error, of the source or of the output: the source is read once more to tell which.

    Raises CorruptError, naming the chunk, where one of the source does not have its own checksum.
    """
    name, target = tensor.piece.source, tensor.name
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


def check_unseen_memory(plan: Plan, reader: Reader, limits: Limits) -> None:
    """Raises MemoryBudgetError now for tensors that could not be read after everything was written."""
    unseen = (reader.tensors[name] for name in _unseen(plan, reader))
    check_memory(((t.spec, t.encoding) for t in unseen), limits)


def _with_unseen_digests(
    plan: Plan, reader: Reader, results: Sequence[TensorResult], limits: Limits
) -> list[str | None]:
    """The digest of each tensor's only source as it is stored now; None where it was not read and has no record."""
    unseen = _unseen(plan, reader)
    found = tensor_digests(reader, limits, unseen) if unseen else {}
    return [
        result.source_digest or found.get(tensor.piece.source)
        for tensor, result in zip(plan.tensors, results, strict=True)
    ]


def _unseen(plan: Plan, reader: Reader) -> set[str]:
    copied = {t.piece.source for t in plan.tensors if t.strategy == "copy"}
    return {
        name
        for name in copied
        if reader.tensors[name].digest and not reader.tensors[name].encoding.checksum
    }
