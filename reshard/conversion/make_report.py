"""Makes the report of a conversion from what became of its tensors."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from reshard.conversion.check_target import CheckedOptions
from reshard.conversion.report import ConversionReport, Proof, TensorReport
from reshard.conversion.target_job import TargetJob
from reshard.engine.tensor_book import TensorResult
from reshard.formats.contents import StoredTensor
from reshard.planning.tensor_plan import TensorPlan


def already_done(
    source: str, target: str, tensors: Iterable[StoredTensor], seconds: float
) -> ConversionReport:
    """The report of a target that an earlier run finished, with these tensors."""
    kept = tuple(map(_kept, tensors))
    return ConversionReport(source, target, kept, 0, 0, 0, seconds, already_done=True)


def _kept(tensor: StoredTensor) -> TensorReport:
    """The report of a tensor of a finished target, which does not record where the tensor came from."""
    spec = tensor.spec
    return TensorReport(
        source=None,
        target=spec.name,
        shape=spec.shape,
        source_dtype=None,
        target_dtype=spec.dtype,
        strategy=None,
        nbytes=spec.nbytes,
        source_digest=None,
        target_digest=tensor.digest,
        proof=None,
    )


def _proof(result: TensorResult, options: CheckedOptions) -> Proof:
    if options.check == "readback":
        return "proved"
    return "encoded" if result.target_digest is None else "written"


def conversion_report(
    job: TargetJob, results: Sequence[TensorResult], seconds: float, resumed_bytes: int
) -> ConversionReport:
    """What a conversion did, in this run and in those that it resumed."""
    return ConversionReport(
        job.summary.source,
        str(job.place),
        tuple(
            _tensor_report(tensor, result, _proof(result, job.options))
            for tensor, result in zip(job.plan.tensors, results, strict=True)
        ),
        read_bytes=sum(r.read_bytes for r in results),
        moved_bytes=sum(r.moved_bytes for r in results),
        written_bytes=sum(r.written_bytes for r in results),
        seconds=seconds,
        warnings=job.summary.warnings,
        resumed_bytes=resumed_bytes,
        missing_chunks=job.summary.missing_chunks,
    )


def _tensor_report(tensor: TensorPlan, result: TensorResult, proof: Proof) -> TensorReport:
    piece = tensor.piece
    return TensorReport(
        piece.source,
        tensor.name,
        tensor.target.spec.shape,
        piece.source_dtype,
        piece.target_dtype,
        tensor.strategy,
        tensor.target.spec.nbytes,
        result.source_digest,
        result.target_digest,
        proof,
        result.cast if any(each.is_cast for each in tensor.pieces) else None,
    )
