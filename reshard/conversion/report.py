"""The reports of a conversion: of each tensor, each target, and several targets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from msgspec import Meta, field
from msgspec.structs import replace

from reshard.answers.record import Json, Record, counted, origins_text, several, warned
from reshard.answers.shared import Change, Digest, MissingNumbers, Shape, Strategy
from reshard.conversion.plan import MapSummary
from reshard.conversion.planned_tensor import change_of, sources_of
from reshard.engine.task import CastStats
from reshard.geometry.sizes import format_bytes
from reshard.storage.base import Requests

if TYPE_CHECKING:
    from reshard.conversion.open_target import OpenTarget
    from reshard.engine.books import TensorResult
    from reshard.formats.base import Reader
    from reshard.layout.tensor_spec import TensorSpec
    from reshard.planning.plans import TensorPlan

Proof = Literal["proved", "written", "encoded"]
"""The degree to which equality was shown.

written: the digest of what was decoded equals the digest of what was handed to the storage.
proved: besides, the output was read again from storage and has that digest.
encoded: identical chunks travelled encoded and were not decoded.
"""


Exactness = Literal["exact", "rounded"]


class TensorReport(Record, frozen=True):
    """The result for one tensor; if the target was already done, only what the target records.

    That is ``target``, ``shape``, ``target_dtype``, ``nbytes`` and, if it was recorded, ``target_digest``. The rest is None.

    Attributes:
        source_digest: of what was read; None where it travelled encoded.
        target_digest: of what was written; without a cast equal to the source's.
        cast: losses of a cast or of arithmetic; None where there was none.
        sources: ``source`` first; None without a map.
        change: None without a map.
        dequantized: None for a tensor that is made of no codes.
    """

    JSON: ClassVar[Json] = Json(left_out=("sources", "change", "dequantized"))

    source: str | None
    target: str
    shape: Shape
    source_dtype: str | None
    target_dtype: str
    strategy: Strategy | None
    nbytes: int
    source_digest: Digest | None
    target_digest: Digest | None
    proof: Proof | None
    cast: CastStats | None = None
    sources: Annotated[
        tuple[str, ...] | None, Meta(description="Of a map: all source tensors.")
    ] = None
    change: Annotated[Change | None, Meta(description="Of a map: what became of the elements.")] = (
        None
    )
    dequantized: Annotated[
        Exactness | None,
        Meta(
            description="Of codes with scales: every weight is exactly what they stand for, or some may be rounded, once."
        ),
    ] = None

    def __repr__(self) -> str:
        name = (
            self.target if self.source in (None, self.target) else f"{self.source} → {self.target}"
        )
        if self.sources is not None and len(self.sources) != 1:
            name = f"{origins_text(self.sources)} → {self.target}"
        same = self.source_dtype in (None, self.target_dtype)
        dtype = self.target_dtype if same else f"{self.source_dtype} → {self.target_dtype}"
        digest = f", {self.target_digest}" if self.target_digest else ""
        proof = f", {self.proof}" if self.proof else ""
        return f"TensorReport({name!r}: {dtype} {list(self.shape)}{digest}{proof})"


How = Literal["carried", "computed", "checked", "recorded"]


class IdentityReport(Record, frozen=True):
    """The identity of a target's weights.

    Attributes:
        source: None where both roots are equal, and where the source records no identity.
        signers: "" for a key that the signature does not name.
    """

    JSON: ClassVar[Json] = Json(left_out=("source", "signers"))

    root: Annotated[str, Meta(description="64 hex digits.")]
    how: Annotated[
        How,
        Meta(
            description="From the source, by its word; of what was written; computed and equal to the source's; or recorded in a "
            "target that was finished before, of which nothing was read."
        ),
    ]
    source: Annotated[
        str | None,
        Meta(
            description="Root of the source, where the target's is another and a receipt says which rules made it."
        ),
    ] = None
    signers: Annotated[
        tuple[str, ...],
        Meta(
            description="Ids of the keys of the signature that lies beside the target's identity; not verified."
        ),
    ] = ()


class RequestReport(Record, frozen=True):
    """Requests to buckets, before and after a run.

    Attributes:
        planned: before it began.
        actual: those that this process made during the run.
    """

    planned: Requests
    actual: Requests


class ConversionReport(Record, frozen=True):
    """The result for one target.

    Attributes:
        tensors: in the tree's order.
        read_bytes: encoded bytes of the source chunks that were read, repetition included, in all runs.
        moved_bytes: decoded bytes that were moved, in all runs.
        written_bytes: encoded bytes of the target's chunks, checksums and padding included.
        seconds: wall time of this run, syncing included.
        warnings: facts that a person should know, one sentence each.
        resumed_bytes: those of ``moved_bytes`` that an earlier, unfinished run moved.
        already_done: the target was the finished result of this very conversion; nothing was touched,
            and no bytes are counted. ``tensors`` say what the target records. For its identity it may have been read.
        missing_chunks: number of chunks that were not stored, by the name of each source tensor that lacked any; the fill
            value was taken. Empty if it was already done.
        requests: to buckets, where the source or the target is in one; of several targets ``MultiReport`` has those of all
            together.
        map: None without one.
        identity: None where none was made.
        merged: None for a conversion of one checkpoint.
    """

    JSON: ClassVar[Json] = Json(
        (
            "source", "target", "tensors", "nbytes", "read_bytes", "moved_bytes", "written_bytes", "seconds", "warnings",
            "missing_chunks", "resumed_bytes", "already_done", "requests", "map", "identity", "merged",
        ),
        left_out=("map", "identity", "merged"),
        later=("missing_chunks", "requests"),
    )  # fmt: skip

    source: str
    target: str
    tensors: tuple[TensorReport, ...]
    read_bytes: int
    moved_bytes: int
    written_bytes: int
    seconds: float
    warnings: tuple[str, ...] = ()
    resumed_bytes: int = 0
    already_done: bool = False
    requests: Annotated[
        RequestReport | None,
        Meta(
            description="Requests to buckets; null if nothing is in one, and for each of several targets."
        ),
    ] = None
    missing_chunks: MissingNumbers = field(default_factory=dict)
    map: Annotated[MapSummary | None, Meta(description="What a map made of the source.")] = None
    identity: Annotated[
        IdentityReport | None, Meta(description="Of the weights, where one was made.")
    ] = None
    merged: Annotated[
        str | None,
        Meta(description="Of several checkpoints: what was averaged, with which weights."),
    ] = None

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors."""
        return sum(tensor.nbytes for tensor in self.tensors)

    def __repr__(self) -> str:
        done = "finished before" if self.already_done else f"in {self.seconds:.1f} s"
        size = f"{counted(len(self.tensors), 'tensor')}, {format_bytes(self.nbytes)}"
        headline = f"{self.source!r} → {self.target!r}: {size}, {done}"
        return several("ConversionReport", headline, self.tensors, warned(self.warnings))


class MultiReport(Record, frozen=True):
    """The report of a conversion to several targets.

    Attributes:
        reports: of each target, in the order in which they were given; each counts what was read for it.
        read_bytes: encoded bytes of the source's chunks that this run read, for all targets together.
        seconds: wall time of this run, syncing included.
        requests: to buckets, where the source or a target is in one.
    """

    JSON: ClassVar[Json] = Json(("source", "reports", "read_bytes", "requests"))

    source: str
    reports: tuple[ConversionReport, ...]
    read_bytes: int
    seconds: float
    requests: RequestReport | None = None

    def __repr__(self) -> str:
        read = f"read {format_bytes(self.read_bytes)} in {self.seconds:.1f} s"
        lines = [str(report).partition("\n")[0] for report in self.reports]
        headline = f"{self.source!r}: {counted(len(self.reports), 'target')}, {read}"
        return several("MultiReport", headline, lines)


class BegunParts(Record, frozen=True):
    """A conversion whose parts can be done now, by any process that sees source and targets.

    Attributes:
        parts: their number.
        total_bytes: decoded bytes that all of them move.
        already_done: true if the targets are the finished results of this conversion.
    """

    source: str
    targets: tuple[str, ...]
    parts: int
    total_bytes: int
    already_done: bool = False

    def __repr__(self) -> str:
        work = f"{counted(self.parts, 'part')} of {format_bytes(self.total_bytes)} together"
        return f"BegunParts({self.source!r} → {', '.join(self.targets)}: {work})"


class PartReport(Record, frozen=True):
    """The report of one part of a conversion; the target appears with ``commit``, when all parts are done.

    Attributes:
        part: such as ``"3/16"``.
        tasks: units of work of this part.
        moved_bytes: decoded bytes that were moved, in all runs of this part.
        read_bytes: encoded bytes of source chunks that this run read.
        written_bytes: encoded bytes of the target's chunks, in all runs of this part.
        resumed_bytes: those of ``moved_bytes`` that an earlier run moved.
        seconds: wall time of this run, syncing included.
        already_done: true if the target is the finished result of this conversion, so that nothing was done.
    """

    source: str
    target: str
    part: str
    tasks: int = 0
    moved_bytes: int = 0
    read_bytes: int = 0
    written_bytes: int = 0
    resumed_bytes: int = 0
    seconds: float = 0.0
    warnings: tuple[str, ...] = ()
    already_done: bool = False

    def __repr__(self) -> str:
        done = (
            "the target was finished before"
            if self.already_done
            else f"{counted(self.tasks, 'task')}, {format_bytes(self.moved_bytes)}, in {self.seconds:.1f} s"
        )
        return f"PartReport({self.source!r} → {self.target!r}, part {self.part}: {done})"


def finished_report(
    source: str,
    target: str,
    found: Reader,
    seconds: float,
    identity: IdentityReport | None,
    warnings: tuple[str, ...] = (),
) -> ConversionReport:
    """The report of a target that an earlier run finished."""
    kept = tuple(kept_report(each.spec, each.digest) for each in found.tensors.values())
    return ConversionReport(
        source, target, kept, 0, 0, 0, seconds, warnings, already_done=True, identity=identity
    )


def kept_report(spec: TensorSpec, digest: str | None) -> TensorReport:
    """The report of a tensor of which only the target is known."""
    return TensorReport(
        source=None,
        target=spec.name,
        shape=spec.shape,
        source_dtype=None,
        target_dtype=spec.dtype,
        strategy=None,
        nbytes=spec.nbytes,
        source_digest=None,
        target_digest=digest,
        proof=None,
    )


def made_report(
    target: OpenTarget, results: Sequence[TensorResult], seconds: float, members: Mapping[str, Any]
) -> ConversionReport:
    """The report of a target, of this run and of those that it resumed; ``members``: those that features gave."""
    planned = target.planned
    summary, is_read_back = planned.summary, planned.target.check == "readback"
    decoded: Mapping[str, tuple[str, bool]] = {}
    if "dequantize" in planned.reader.computed:
        from reshard.arithmetic.dequantize import dequantized

        decoded = dequantized(planned.reader)
    return ConversionReport(
        summary.source,
        str(planned.place),
        tuple(
            replace(
                _tensor_report(tensor, result, is_read_back, summary.map is not None),
                dequantized=_exactness(tensor, decoded),
            )
            for tensor, result in zip(planned.plan.tensors, results, strict=True)
        ),
        read_bytes=sum(r.read_bytes for r in results),
        moved_bytes=sum(r.moved_bytes for r in results),
        written_bytes=sum(r.written_bytes for r in results),
        seconds=seconds,
        warnings=summary.warnings,
        resumed_bytes=target.books.resumed_bytes,
        missing_chunks=summary.missing_chunks,
        map=summary.map,
        **members,
    )


def _exactness(tensor: TensorPlan, decoded: Mapping[str, tuple[str, bool]]) -> Exactness | None:
    exact = [decoded[piece.source][1] for piece in tensor.pieces if piece.source in decoded]
    return ("exact" if all(exact) else "rounded") if exact else None


def _tensor_report(
    tensor: TensorPlan, result: TensorResult, is_read_back: bool, is_mapped: bool
) -> TensorReport:
    piece = tensor.piece
    unread: Proof = "encoded" if result.target_digest is None else "written"
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
        "proved" if is_read_back else unread,
        result.cast if any(each.is_computed for each in tensor.pieces) else None,
        *made,
    )
