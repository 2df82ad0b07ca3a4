"""The reports of a conversion: of each tensor, each target, and several targets."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from msgspec import UNSET, field, structs

from reshard.conversion.map_summary import MapSummary
from reshard.documents import reports as documents
from reshard.documents.reports import IdentityOutcome, TimeComparison
from reshard.documents.shared import Change, RequestComparison, Strategy, document_of
from reshard.engine.task import CastStats
from reshard.geometry.sizes import format_bytes
from reshard.planning.estimates import TimePlan
from reshard.record import Record, counted, origins_text, several, warned
from reshard.storage.requests import Requests

Proof = Literal["proved", "written", "encoded"]
"""The degree to which equality was shown.

written: the digest of what was decoded equals the digest of what was handed to the storage.
proved: besides, the output was read again from storage and has that digest.
encoded: identical chunks travelled encoded and were not decoded.
"""


class TensorReport(Record, frozen=True):
    """The outcome of one tensor.

    Of a target that was finished before, only its own record is known: ``target``, ``shape``,
    ``target_dtype``, ``nbytes`` and, if it was recorded, ``target_digest``. The rest is None.

    Attributes:
        source_digest: CRC-64/NVME of what was read, 16 hex digits; None where it travelled encoded.
        target_digest: of what was written; without a cast equal to the source's.
        cast: losses of a cast or of arithmetic; None where there was none.
        sources: with a map, all source tensors, ``source`` first; else None.
        change: with a map, the change to the elements; else None.
    """

    source: str | None
    target: str
    shape: tuple[int, ...]
    source_dtype: str | None
    target_dtype: str
    strategy: Strategy | None
    nbytes: int
    source_digest: str | None
    target_digest: str | None
    proof: Proof | None
    cast: CastStats | None = None
    sources: tuple[str, ...] | None = None
    change: Change | None = None

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

    def _document(self) -> documents.TensorReport:
        cast = None if self.cast is None else document_of(self.cast, documents.CastReport)
        mapped = {
            "sources": UNSET if self.sources is None else self.sources,
            "change": UNSET if self.change is None else self.change,
        }
        return documents.TensorReport(**{**structs.asdict(self), "cast": cast, **mapped})


How = Literal["carried", "computed", "checked", "recorded"]


class IdentityReport(Record, frozen=True):
    """The identity of a target's weights.

    Attributes:
        root: 64 hex digits.
        how: ``"carried"`` from the source, by its word; ``"computed"`` from what was written; ``"checked"``: computed, and equal to the
            source's; ``"recorded"`` in a target that was finished before; no tensor was read.
        source: root of the source, where the target's is another and a receipt says which rules made it; None where both are equal,
            and where the source records no identity.
        signers: the ids of the keys of the signature that lies beside the target's identity, "" for one that it does not name; nothing
            is verified.
    """

    root: str
    how: How
    source: str | None = None
    signers: tuple[str, ...] = ()

    def _document(self) -> IdentityOutcome:
        return IdentityOutcome(self.root, self.how, self.source or UNSET, self.signers or UNSET)


class RequestReport(Record, frozen=True):
    """The requests of a run to buckets.

    Attributes:
        planned: before it began.
        actual: those that this process made during the run.
    """

    planned: Requests
    actual: Requests

    def _document(self) -> RequestComparison:
        return RequestComparison(self.planned._document(), self.actual._document())


class TimeReport(Record, frozen=True):
    """The time of a run on several hosts.

    Attributes:
        planned: for the whole conversion, also where this run resumed an earlier one.
        actual_s: wall seconds of this run, syncing included.
    """

    planned: TimePlan
    actual_s: float

    def _document(self) -> TimeComparison:
        return TimeComparison(self.planned._document(), self.actual_s)


class ConversionReport(Record, frozen=True):
    """The report of a conversion to one target.

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
        time: planned and actual, where several hosts converted; of several targets ``MultiReport`` has it.
        map: the effect of the map on the source; None without one.
        identity: of the target's weights; None where none was made.
    """

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
    requests: RequestReport | None = None
    time: TimeReport | None = None
    missing_chunks: Mapping[str, int] = field(default_factory=dict)
    map: MapSummary | None = None
    identity: IdentityReport | None = None

    def __repr__(self) -> str:
        nbytes = sum(tensor.nbytes for tensor in self.tensors)
        done = "finished before" if self.already_done else f"in {self.seconds:.1f} s"
        size = f"{counted(len(self.tensors), 'tensor')}, {format_bytes(nbytes)}"
        headline = f"{self.source!r} → {self.target!r}: {size}, {done}"
        return several("ConversionReport", headline, self.tensors, warned(self.warnings))

    def _document(self) -> documents.TargetReport:
        return documents.TargetReport(
            source=self.source,
            target=self.target,
            tensors=tuple(tensor._document() for tensor in self.tensors),
            nbytes=sum(tensor.nbytes for tensor in self.tensors),
            read_bytes=self.read_bytes,
            moved_bytes=self.moved_bytes,
            written_bytes=self.written_bytes,
            seconds=self.seconds,
            warnings=self.warnings,
            missing_chunks=self.missing_chunks,
            resumed_bytes=self.resumed_bytes,
            already_done=self.already_done,
            requests=None if self.requests is None else self.requests._document(),
            time=UNSET if self.time is None else self.time._document(),
            map=UNSET if self.map is None else self.map._document(),
            identity=UNSET if self.identity is None else self.identity._document(),
        )


class MultiReport(Record, frozen=True):
    """The report of a conversion to several targets.

    Attributes:
        reports: of each target, in the order in which they were given; each counts what was read for it.
        read_bytes: encoded bytes of the source's chunks that this run read, for all targets together.
        seconds: wall time of this run, syncing included.
        requests: to buckets, where the source or a target is in one.
        time: planned and actual, where several hosts converted.
    """

    source: str
    reports: tuple[ConversionReport, ...]
    read_bytes: int
    seconds: float
    requests: RequestReport | None = None
    time: TimeReport | None = None

    def __repr__(self) -> str:
        read = f"read {format_bytes(self.read_bytes)} in {self.seconds:.1f} s"
        lines = [str(report).partition("\n")[0] for report in self.reports]
        headline = f"{self.source!r}: {counted(len(self.reports), 'target')}, {read}"
        return several("MultiReport", headline, lines)

    def _document(self) -> documents.MultiTargetReport:
        return documents.MultiTargetReport(
            source=self.source,
            reports=tuple(report._document() for report in self.reports),
            read_bytes=self.read_bytes,
            requests=None if self.requests is None else self.requests._document(),
            time=UNSET if self.time is None else self.time._document(),
        )


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
