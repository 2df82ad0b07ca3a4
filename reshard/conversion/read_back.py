"""Reads the staged output from storage again and compares it with what was written.

The kernel is asked to drop the files from its cache first, so that reading reaches the device. Tensors that
were copied encoded were never decoded, so that their sources are read too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from msgspec.structs import replace

from reshard.engine.limits import Limits
from reshard.engine.progress import Progress
from reshard.engine.read_digests import check_decodable, tensor_digests
from reshard.engine.tensor_book import TensorResult
from reshard.errors import FormatError, VerificationError
from reshard.formats.base import Reader, TargetCheckpoint
from reshard.formats.codecs.source import REMEDY
from reshard.formats.registry import open_written
from reshard.planning.tensor_plan import Plan, TensorPlan
from reshard.storage.location import Location

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
