"""The final output of ``convert``: sizes, speed, proofs, and the losses of casts; or the work of one part. The lines about time and requests."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial

from rich.console import RenderableType
from rich.text import Text

from reshard import (
    CastStats,
    ConversionReport,
    IdentityReport,
    MultiReport,
    PartReport,
    PlannedRequests,
    RequestReport,
    Requests,
    TensorReport,
    TimePlan,
)
from reshard.cli.tables import Cell, Column, capped, first_rows, sources_text, table, warnings_of
from reshard.cli.text import (
    count_text,
    dtype_text,
    duration_text,
    map_text,
    rate_text,
    ratio_text,
    safe,
)
from reshard.conversion.report import Proof
from reshard.geometry.sizes import format_bytes


def planned_time(plan: TimePlan | None) -> Iterator[Text]:
    """The time, its parts and its bottleneck; a second line says what is not counted."""
    if plan is None:
        return
    parts = ", ".join(f"{part} {duration_text(seconds)}" for part, seconds in plan.by_part.items())
    verb = "are" if plan.bottleneck == "cores" else "is"
    yield Text(
        f"time: about {duration_text(plan.seconds)} on {_hosts(plan)}: {parts}; the {plan.bottleneck} {verb} the bottleneck"
    )
    unknown = [
        *(["the network (--nic gives its speed)"] if plan.network_s is None else []),
        *(["the speed of the file system"] if plan.store_s is None else []),
    ]
    if unknown:
        yield Text(f"not counted: {', '.join(unknown)}", style="dim")


def _hosts(plan: TimePlan) -> str:
    return f"{count_text(plan.hosts, 'host')} × {count_text(plan.cores, 'core')}"


def planned_requests(found: PlannedRequests | None) -> Iterator[Text]:
    """The most requests by kind, the bytes, and the time that they take on a link."""
    if found is None:
        return
    kinds = ", ".join(f"{count:,} {kind}" for kind, count in found.by_kind.items() if count)
    yield Text(
        f"requests: at most {found.total:,} to buckets ({kinds}); {format_bytes(found.received_bytes)} in, "
        f"{format_bytes(found.sent_bytes)} out; about {duration_text(found.seconds)} at "
        f"{1000 * found.latency_s:,.4g} ms and {found.bytes_per_s / 1e6:,.4g} MB/s"
    )


def request_report(report: RequestReport | None) -> Iterator[RenderableType]:
    """A table of planned and actual requests."""
    if report is None:
        return
    kinds = _made(report.planned, report.actual)
    rows = [
        (
            title,
            *(f"{found.by_kind[kind]:,}" for kind in kinds),
            f"{found.total:,}",
            *_sizes(found),
        )
        for title, found in (("planned at most", report.planned), ("made", report.actual))
    ]
    yield table("", ("requests", *(f">{kind}" for kind in kinds), ">total", ">in", ">out"), rows)


def _made(*found: Requests) -> list[str]:
    return [kind for kind in found[0].by_kind if any(one.by_kind[kind] for one in found)]


def _sizes(found: Requests) -> tuple[str, str]:
    return format_bytes(found.received_bytes), format_bytes(found.sent_bytes)


MOST_DIGESTS = 8
UNKNOWN = "–"

_PROOFS: dict[Proof, str] = {
    "proved": "the output was read again from storage and has the source's digest",
    "written": "the decoded bytes and the bytes handed to the storage have equal digests",
    "encoded": "identical chunks were copied encoded and not decoded",
}
_CAST_PROOFS: dict[Proof, str] = _PROOFS | {
    "proved": "the output was read again from storage and has the digest of the bytes written",
    "written": "the digest of the bytes handed to the storage is recorded",
}


_HOW: dict[str, str] = {
    "carried": "carried from the source, not verified",
    "computed": "computed from what was written",
    "checked": "computed from what was written, equal to the source's",
    "recorded": "as the target records it",
}


def reports_view(made: MultiReport, show_all: bool) -> Iterator[RenderableType]:
    """The report of each target, then what was read, and the time and the requests, for several of them together."""
    said: set[str] = set()
    for report in made.reports:
        yield from report_view(report, show_all, said)
    if len(made.reports) > 1 and made.read_bytes:
        yield from together_view(made.reports, made.read_bytes)
        yield from request_report(made.requests)


def report_view(
    report: ConversionReport, show_all: bool, said: set[str] | None = None
) -> Iterator[RenderableType]:
    """The report as a person reads it; the headline comes first. Warnings in ``said`` are not repeated."""
    if report.already_done:
        yield Text(
            f"nothing to do: {safe(report.target)} is the finished result of this conversion"
        )
        yield from _digests(report.tensors, show_all)
        yield from _identity(report.identity)
        yield from warnings_of(report.warnings, said)
        return
    yield from _done(report)
    yield from request_report(report.requests)
    if report.map is not None:
        yield Text(map_text(report.map))
    yield from _dequantized(report.tensors)
    yield from _casts(report.tensors, show_all)
    yield from _digests(report.tensors, show_all)
    yield from map(Text, _proofs(report.tensors))
    yield from _identity(report.identity)
    yield from warnings_of(report.warnings, said)


def _identity(found: IdentityReport | None) -> Iterator[Text]:
    if found is not None:
        yield Text(f"identity {_HOW[found.how]}: {found.root}")
        if found.source is not None:
            yield Text(f"its receipt names the source's: {found.source}")
        for signer in found.signers:
            yield Text(f"signed with the key {safe(signer[:64]) or 'unknown'}; not verified")


def together_view(reports: Sequence[ConversionReport], read_bytes: int) -> Iterator[Text]:
    """The bytes read for several targets together."""
    alone = sum(report.read_bytes for report in reports if not report.already_done)
    yield Text(
        f"together: read {format_bytes(read_bytes)} from files in this run, for {count_text(len(reports), 'target')} "
        f"that need {format_bytes(alone)}"
    )


def _done(report: ConversionReport) -> Iterator[Text]:
    size = sum(t.nbytes for t in report.tensors)
    yield Text.assemble(
        ("converted ", "bold green"),
        f"{count_text(len(report.tensors), 'tensor')}, {format_bytes(size)}, in "
        f"{duration_text(report.seconds)} ({_rate(report, size)}, syncing included) "
        f"→ {safe(report.target)}",
    )
    yield Text(
        f"read {format_bytes(report.read_bytes)} from files ({_times(report.read_bytes, size)} the "
        f"tensors' size), moved {format_bytes(report.moved_bytes)} ({_times(report.moved_bytes, size)}), "
        f"wrote {format_bytes(report.written_bytes)} ({_times(report.written_bytes, size)})"
    )


def _rate(report: ConversionReport, size: int) -> str:
    """The rate of this run; the share of an earlier run is named beside it."""
    if not report.resumed_bytes or not report.moved_bytes:
        return rate_text(size, report.seconds)
    resumed = report.resumed_bytes / report.moved_bytes
    return f"{rate_text(size * (1 - resumed), report.seconds)}; {_share(resumed)} were done before"


def _share(part: float) -> str:
    return f"{100 * part:.0f}%"


def _times(part: int, size: int) -> str:
    return ratio_text(part / size) if size else "–"


def _dequantized(tensors: Sequence[TensorReport]) -> Iterator[Text]:
    counts = Counter(tensor.dequantized for tensor in tensors if tensor.dequantized)
    if counts:
        found = ", ".join(f"{count:,} {word}" for word, count in sorted(counts.items()))
        yield Text(f"{count_text(counts.total(), 'weight')} dequantised: {found}")


def _casts(tensors: Sequence[TensorReport], show_all: bool) -> Iterator[RenderableType]:
    """Casts; those that lost most come first."""
    casts = [(t, t.cast) for t in tensors if t.cast is not None]
    casts.sort(
        key=lambda c: (c[1].overflows, c[1].saturated, c[1].largest_relative_error), reverse=True
    )
    is_mapped = any(tensor.change is not None for tensor, _ in casts)
    saturate = any(stats.saturated for _, stats in casts)
    name = "computed tensor" if is_mapped else "cast tensor"
    lost = (">overflows", *((">saturated",) if saturate else ()))
    titles = (name, "dtype", *lost, ">NaNs", ">rel. error")
    row = partial(_cast_row, saturate=saturate)
    yield from first_rows(titles, casts, row, "casts", show_all=show_all, most=MOST_DIGESTS)


def _cast_row(cast: tuple[TensorReport, CastStats], *, saturate: bool) -> tuple[Cell, ...]:
    tensor, stats = cast
    saturated = Text(f"{stats.saturated:,}", style="bold red" if stats.saturated else "")
    return (
        _name(tensor),
        dtype_text(tensor.source_dtype or UNKNOWN, tensor.target_dtype),
        Text(f"{stats.overflows:,}", style="bold red" if stats.overflows else ""),
        *((saturated,) if saturate else ()),
        f"{stats.nans:,}",
        f"{stats.largest_relative_error:.2g}",
    )


def _digests(tensors: Sequence[TensorReport], show_all: bool) -> Iterator[RenderableType]:
    shown = capped(tensors, show_all, MOST_DIGESTS)
    source = (Column("source's CRC-64", rank=2),) if any(map(_is_changed, shown)) else ()
    weights = ("weights",) if any(tensor.dequantized for tensor in shown) else ()
    titles = (
        "tensor",
        Column("strategy", rank=1),
        ">bytes",
        *weights,
        *source,
        "CRC-64/NVME",
        "proof",
    )
    row = partial(_digest_row, with_weights=bool(weights), with_source=bool(source))
    yield from first_rows(titles, tensors, row, "tensors", show_all=show_all, most=MOST_DIGESTS)


def _name(tensor: TensorReport) -> str:
    return sources_text(tensor.sources, tensor.source, tensor.target)


def _is_changed(tensor: TensorReport) -> bool:
    return tensor.source_digest not in (None, tensor.target_digest)


def _digest_row(tensor: TensorReport, with_weights: bool, with_source: bool) -> tuple[Cell, ...]:
    return (
        _name(tensor),
        tensor.strategy or UNKNOWN,
        format_bytes(tensor.nbytes),
        *((tensor.dequantized or UNKNOWN,) if with_weights else ()),
        *((tensor.source_digest or UNKNOWN,) if with_source else ()),
        tensor.target_digest or UNKNOWN,
        tensor.proof or UNKNOWN,
    )


def _proofs(tensors: Sequence[TensorReport]) -> Iterator[str]:
    counts = Counter((t.proof, t.cast is not None) for t in tensors if t.proof is not None)
    for (proof, is_cast), count in sorted(counts.items()):
        meaning = (_CAST_PROOFS if is_cast else _PROOFS)[proof]
        yield f"{proof}: {count_text(count, 'cast tensor' if is_cast else 'tensor')}; {meaning}"


def part_view(report: PartReport) -> Iterator[RenderableType]:
    """The work of the part, and the next step."""
    if report.already_done:
        yield Text.assemble(
            ("already done: ", "bold green"),
            f"{safe(report.target)} is the finished result of this conversion; nothing was touched",
        )
        return
    moved = report.moved_bytes - report.resumed_bytes
    resumed = (
        f", {format_bytes(report.resumed_bytes)} of them before" if report.resumed_bytes else ""
    )
    yield Text.assemble(
        ("done: ", "bold green"),
        f"part {report.part} of {safe(report.source)} → {safe(report.target)}: {count_text(report.tasks, 'task')}, "
        f"{format_bytes(report.moved_bytes)}{resumed}, in {duration_text(report.seconds)} ({rate_text(moved, report.seconds)})",
    )
    yield Text(f"when all parts are done: reshard commit {safe(report.target)}")
