"""Makes the reports of a conversion: of one target, of one part, and of all targets."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from reshard.conversion.check_target import CheckedOptions, CheckedTarget
from reshard.conversion.finish import FinishedTarget
from reshard.conversion.finished_target import finished_identity, recorded_report
from reshard.conversion.make_plan import error_name
from reshard.conversion.plan import change_of, sources_of
from reshard.conversion.report import (
    ConversionReport,
    IdentityReport,
    MultiReport,
    PartReport,
    Proof,
    RequestReport,
    TensorReport,
    TimeReport,
)
from reshard.conversion.run import Run
from reshard.conversion.target_job import OpenTarget, TargetJob
from reshard.engine.books import TensorResult
from reshard.engine.error_context import about_target
from reshard.formats.base import Reader
from reshard.formats.contents import StoredTensor
from reshard.formats.names import IDENTITY_NAME
from reshard.planning.plans import TensorPlan
from reshard.storage.buckets.counts import so_far
from reshard.storage.location import locate
from reshard.storage.parts import Part


def finished_report(
    source: str,
    target: str,
    found: Reader,
    seconds: float,
    identity: IdentityReport | None,
    warnings: tuple[str, ...] = (),
) -> ConversionReport:
    """The report of a target that an earlier run finished."""
    kept = tuple(map(_kept, found.tensors.values()))
    return ConversionReport(
        source,
        target,
        kept,
        0,
        0,
        0,
        seconds,
        warnings=warnings,
        already_done=True,
        identity=identity,
    )


def report_finished(run: Run, number: int, result: Reader) -> None:
    """Notes the report of a target that an earlier run finished, with the identity that this one asks for.

    Errors as for ``finished_identity``.
    """
    target = run.targets[number]
    ends = (run.source, target.target)
    if run.scope.part is not None:
        part = PartReport(*ends, str(run.scope.part), seconds=run.seconds, already_done=True)
        run.part_reports[number] = part
        return
    if run.scope.is_commit:  # `commit` takes no identity option
        identity = recorded_report(result)
        run.reports[number] = finished_report(*ends, result, run.seconds, identity)
        return
    with about_target(error_name(target, run.targets)):
        found = finished_identity(run.chosen, target.options, result, run.progress.listener)
    warnings = _without_identity(target, result)
    run.reports[number] = finished_report(*ends, result, run.seconds, found, warnings)


def _without_identity(target: CheckedTarget, result: Reader) -> tuple[str, ...]:
    """A warning where an identity is asked for and the folder records none."""
    folder = locate(result.uri)
    if target.options.identity in (None, "none") or not folder.is_folder():
        return ()
    if (folder.view() / IDENTITY_NAME).exists():
        return ()
    return (
        f"{target.target!r} was finished before, without an identity; record it with reshard identify --write, or make the target again "
        "(overwrite)",
    )


def _kept(tensor: StoredTensor) -> TensorReport:
    """The report of a tensor of a finished target, which does not record the tensor's source."""
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


def made_report(
    job: TargetJob, found: FinishedTarget, seconds: float, resumed_bytes: int
) -> ConversionReport:
    """The report of a conversion: of this run and of those that it resumed."""
    results = found.results
    return ConversionReport(
        job.summary.source,
        str(job.place),
        tuple(
            _tensor_report(
                tensor, result, _proof(result, job.options), is_mapped=job.summary.map is not None
            )
            for tensor, result in zip(job.plan.tensors, results, strict=True)
        ),
        read_bytes=sum(r.read_bytes for r in results),
        moved_bytes=sum(r.moved_bytes for r in results),
        written_bytes=sum(r.written_bytes for r in results),
        seconds=seconds,
        warnings=job.summary.warnings,
        resumed_bytes=resumed_bytes,
        missing_chunks=job.summary.missing_chunks,
        map=job.summary.map,
        identity=found.identity,
    )


def _tensor_report(
    tensor: TensorPlan, result: TensorResult, proof: Proof, *, is_mapped: bool
) -> TensorReport:
    piece = tensor.piece
    made = (sources_of(tensor), change_of(tensor)) if is_mapped else ()
    return TensorReport(
        piece.source if piece.fill is None else None,
        tensor.name,
        tensor.target.spec.shape,
        piece.source_dtype,
        piece.target_dtype,
        tensor.strategy,
        tensor.target.spec.nbytes,
        result.source_digest,
        result.target_digest,
        proof,
        result.cast if any(each.is_computed for each in tensor.pieces) else None,
        *made,
    )


def part_report(target: OpenTarget, part: Part, read_bytes: int, seconds: float) -> PartReport:
    """The report of a part: of this run, which read ``read_bytes``, and of those that it resumed."""
    books, job = target.books, target.job
    return PartReport(
        job.summary.source,
        str(job.place),
        str(part),
        tasks=books.tasks_done,
        moved_bytes=books.moved_bytes,
        read_bytes=read_bytes,
        written_bytes=books.written_bytes,
        resumed_bytes=books.resumed_bytes,
        seconds=seconds,
        warnings=job.summary.warnings,
    )


def multi_report(run: Run, source: str, targets: Sequence[str]) -> MultiReport:
    """The reports in the order of the targets, with the paths that the caller gave."""
    reports = tuple(
        replace(run.reports[number], source=source, target=target)
        for number, target in enumerate(targets)
    )
    requests = None
    if run.requests is not None:
        requests = RequestReport(run.requests.requests(), so_far() - run.chosen.before)
    took = None if run.time is None else TimeReport(run.time, run.seconds)
    if len(reports) == 1:
        reports = (replace(reports[0], requests=requests, time=took),)
    return MultiReport(source, reports, run.read_bytes, run.seconds, requests, took)
