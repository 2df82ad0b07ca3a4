"""Proves a conversion by its digests: those that the source recorded, and those of the output read back.

Most digests are taken while tensors are moved. A tensor that is copied encoded is not decoded: where its chunks have no
checksum, nothing else shows whether its bytes changed, and it is read again at the end for its digest alone.

To read back, the kernel is asked to drop the files from its cache first, so that reading reaches the device. Tensors that
were copied encoded were never decoded, so that their sources are read too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from msgspec.structs import replace

from reshard.engine.books import TensorResult
from reshard.engine.limits import Limits
from reshard.engine.progress import Progress
from reshard.engine.read_digests import check_decodable, tensor_digests
from reshard.errors import (
    CorruptError,
    FormatError,
    MemoryBudgetError,
    VerificationError,
)
from reshard.formats.base import Reader, TargetCheckpoint
from reshard.formats.codecs.source import REMEDY
from reshard.formats.registry import open_written
from reshard.maps.mapped_checkpoint import unequal
from reshard.planning.plans import Plan, TensorPlan
from reshard.storage.location import Location


def check_sources(
    plan: Plan,
    reader: Reader,
    seen: Mapping[tuple[int, str], str],
    crcs: Mapping[tuple[int, str], int],
    limits: Limits,
) -> None:
    """Compares the digest or checksum of every source tensor with the one that the source recorded, if any.

    Args:
        seen: the digests that were taken while tensors were moved (``Books.source_digests``).
        crcs: the formats' checksums of what was read (``Books.source_crcs``).

    Raises CorruptError where the source changed since, VerificationError where something else was written.
    """
    unseen = _unseen(plan, reader)
    found = {name: digest for (_, name), digest in seen.items()}
    found |= tensor_digests(reader, limits, unseen) if unseen else {}
    for (_, name), total in crcs.items():
        recorded_crcs = reader.tensors[name].proving_crcs()
        if name not in unseen and recorded_crcs is not None and total != recorded_crcs.total:
            raise _crc_difference(plan, reader, name, limits)
    for name, digest in found.items():
        recorded = reader.tensors[name].digest
        if recorded and recorded != digest:
            raise _difference(plan, reader, name, digest, limits)


def _difference(
    plan: Plan, reader: Reader, name: str, found: str, limits: Limits
) -> CorruptError | VerificationError:
    """The error of the source or of the output; reads the source once more to tell which.

    Raises CorruptError, naming the chunk, where one of the source does not have its own checksum.
    """
    target = next(t.name for t in plan.tensors if any(p.source == name for p in t.pieces))
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


def _crc_difference(plan: Plan, reader: Reader, name: str, limits: Limits) -> VerificationError:
    """The error where the bytes read are not those stored; raises CorruptError where the stored bytes are wrong themselves."""
    tensor_digests(reader, limits, [name])
    target = next(t.name for t in plan.tensors if any(p.source == name for p in t.pieces))
    crcs = reader.tensors[name].crcs
    kind = "CRC" if crcs is None else crcs.crc.title
    return VerificationError(
        f"{target!r}: what was read of {name!r} does not have the {kind} that was recorded, but what is stored has it; the output was "
        "discarded; check this machine's memory, then run again"
    )


def check_equal(
    reader: Reader,
    pairs: Sequence[tuple[str, str]],
    seen: Mapping[tuple[int, str], str],
    limits: Limits,
) -> None:
    """Raises VerificationError for source tensors that differ though a map says that they are equal.

    A tensor that was not moved is read for its digest alone.
    """
    known = {name: digest for (_, name), digest in seen.items()}
    for first, second in unequal(reader, pairs, known, limits):
        raise VerificationError(
            f"the map says that {first!r} equals {second!r} (same_as), but their digests differ; "
            "the output was discarded; give the first a rule of its own"
        )


def check_unseen_memory(
    plan: Plan, reader: Reader, limits: Limits, pairs: Sequence[tuple[str, str]] = ()
) -> None:
    """Raises MemoryBudgetError now for tensors that could not be read after everything was written."""
    names = _unseen(plan, reader) | {name for pair in pairs for name in pair}
    check_decodable(((reader.tensors[n].spec, reader.tensors[n].encoding) for n in names), limits)


def _unseen(plan: Plan, reader: Reader) -> set[str]:
    copied = {t.piece.source for t in plan.tensors if t.strategy == "copy"}
    unseen = {
        name
        for name in copied
        if (reader.tensors[name].digest or reader.tensors[name].proving_crcs())
        and not reader.tensors[name].encoding.checksum
    }
    return unseen | {
        piece.source
        for tensor in plan.tensors
        for piece in tensor.pieces
        if piece.source_view is not None
        and piece.fill is None
        and _is_unsummed(reader, piece.source)
    }


def _is_unsummed(reader: Reader, name: str) -> bool:
    """True if the format's checksums cover pieces, which a view does not keep apart."""
    stored = reader.tensors[name]
    return stored.proving_crcs() is not None and stored.proving_crcs(is_viewed=True) is None


_DISCARDED = "the output was discarded; check the device that holds it, then run again"


def check_read_back(plan: Plan, reader: Reader, target: TargetCheckpoint, limits: Limits) -> None:
    """Raises MemoryBudgetError now for tensors that could not be read back after everything was written."""
    check_decodable(((t.spec, t.encoding) for t in target.tensors.values()), limits)
    copied = (reader.tensors[t.piece.source] for t in plan.tensors if t.strategy == "copy")
    check_decodable(((t.spec, t.encoding) for t in copied), limits)


def read_back(
    plan: Plan,
    reader: Reader,
    results: Sequence[TensorResult],
    written: Location,
    limits: Limits,
    progress: Callable[[Progress], None] | None,
) -> list[TensorResult]:
    """The results, with a digest of every tensor; VerificationError where a tensor does not read back as written."""
    found = _stored_digests(written, limits, progress)
    encoded = {
        tensor.piece.source
        for tensor, result in zip(plan.tensors, results, strict=True)
        if result.target_digest is None
    }
    of_source = tensor_digests(reader, limits, encoded)
    return [
        _proved(tensor, result, found, of_source)
        for tensor, result in zip(plan.tensors, results, strict=True)
    ]


def _stored_digests(
    written: Location, limits: Limits, progress: Callable[[Progress], None] | None
) -> dict[str, str]:
    """Digests of the unpublished output; where it cannot be read, the error names the output, not the source."""
    try:
        return tensor_digests(open_written(written), limits, progress=progress)
    except FormatError as error:
        what = str(error).removesuffix(f"; {REMEDY}")
        raise VerificationError(
            f"what was written does not read back: {what}; {_DISCARDED}"
        ) from error


def _proved(
    tensor: TensorPlan, result: TensorResult, found: Mapping[str, str], of_source: Mapping[str, str]
) -> TensorResult:
    name = tensor.name
    expected = result.target_digest or of_source[tensor.piece.source]
    if found.get(name) != expected:
        raise VerificationError(
            f"{name!r} was read back with digest {found.get(name)}, but {expected} was written; {_DISCARDED}"
        )
    source = result.source_digest if result.target_digest else expected
    return replace(result, source_digest=source, target_digest=expected)
