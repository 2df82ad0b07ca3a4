"""The output of ``inspect`` for versions: the chain, sizes, and the versions that the newest needs.

The output of ``identify`` and ``sign``: the root, the tops of the tensors, and the files that were written.

The output of ``delta``: the changes of each tensor, and the size of the delta.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from rich.console import RenderableType
from rich.text import Text

from reshard import CleanedVersions, DeltaReport, DeltaTensor, Identification, VersionInfo
from reshard.cli.tables import Column, cap_note, capped, table, warning
from reshard.cli.text import count_text, duration_text, rate_text, safe
from reshard.geometry.sizes import format_bytes

MOST_TOPS = 8


def identity_view(found: Identification, show_all: bool) -> Iterator[RenderableType]:
    """The headline, the tops, the files, and the root last, where people look for it."""
    yield Text.assemble(
        ("signed " if found.signer else "identified ", "bold green"),
        f"{count_text(len(found.tensors), 'tensor')}, {format_bytes(found.nbytes)}, of {safe(found.uri)} in "
        f"{duration_text(found.seconds)} ({rate_text(found.nbytes, found.seconds)})",
    )
    shown = capped(list(found.tensors.values()), show_all, MOST_TOPS)
    if shown:
        rows = ((t.name, t.top if show_all else f"{t.top[:32]}…") for t in shown)
        yield table("", ("tensor", "top of its tree"), rows, whole=show_all)
    if note := cap_note(len(shown), len(found.tensors), "tensors"):
        yield Text(note, style="dim")
    yield from (Text(f"written: {safe(path)}") for path in found.written)
    yield from map(warning, found.warnings)
    if found.signer:
        yield Text(f"signer: {found.signer}")
    yield Text.assemble("root: ", (found.root, "bold"))


MOST_CHANGED = 20


def delta_view(report: DeltaReport, show_all: bool) -> Iterator[RenderableType]:
    """The headline, the tensors with the largest payloads, warnings and digests."""
    yield Text.assemble(
        ("made ", "bold green"),
        f"{safe(report.target)}, version {report.version} on {report.base_version}, in {duration_text(report.seconds)}: "
        f"{count_text(len(report.tensors), 'tensor')} of {report.all_tensors:,} changed, {format_bytes(report.stored_bytes)} for "
        f"{format_bytes(report.total_bytes)}",
    )
    yield from changes_view(report.tensors.values(), show_all)
    yield from map(warning, report.warnings)
    yield Text.assemble("target digest: ", (report.target_digest, "bold"), f" ({report.checksum})")
    if report.target_identity:
        yield Text.assemble("identity: ", (report.target_identity, "bold"))


def changes_view(tensors: Iterable[DeltaTensor], show_all: bool) -> Iterator[RenderableType]:
    """The changes of the tensors with the largest payloads."""
    found = sorted(tensors, key=lambda one: -one.stored_bytes)
    shown = capped(found, show_all, MOST_CHANGED)
    if shown:
        columns = (
            "tensor", Column("changed", right=True), Column("of", right=True, rank=1), Column("", right=True), Column("stored", right=True),
        )  # fmt: skip
        rows = (
            (
                one.name,
                f"{one.changed:,}",
                f"{one.elements:,}",
                f"{one.changed / max(1, one.elements):.2%}",
                format_bytes(one.stored_bytes),
            )
            for one in shown
        )
        yield table("", columns, rows, whole=show_all)
    if note := cap_note(len(shown), len(found), "tensors"):
        yield Text(note, style="dim")


COLUMNS = (
    "version", "kind", "on", Column("size", right=True), Column("tensors", right=True, rank=1), Column("elements", right=True, rank=2),
    "newest needs it",
)  # fmt: skip

ROOT_DIGITS = 12
"""Digits of an identity's root that are shown: enough to tell two apart; --json has all."""


def versions_view(versions: Sequence[VersionInfo], show_all: bool) -> Iterator[RenderableType]:
    """A row for each version, with the changes of a delta; the problem of each that leads nowhere; for one delta also its tensors."""
    has_roots = any(one.identity for one in versions)
    columns = (*COLUMNS, Column("identity", rank=2)) if has_roots else COLUMNS
    rows = (
        (
            one.name,
            one.kind,
            one.base_version,
            format_bytes(one.nbytes),
            f"{one.changed:,}" if one.kind == "delta" else "",
            "" if one.changed_elements is None else f"{one.changed_elements:,}",
            "yes" if one.is_needed else "no",
            *((one.identity[:ROOT_DIGITS],) if has_roots else ()),
        )
        for one in versions
    )
    yield table("", columns, rows, whole=True)
    for one in versions:
        if one.problem:
            yield Text(f"{one.name}: {one.problem}")
    total = sum(one.nbytes for one in versions)
    idle = sum(one.nbytes for one in versions if not one.is_needed)
    told = f"; the newest does not need {format_bytes(idle)}" if idle else ""
    yield Text(f"{count_text(len(versions), 'version')}, {format_bytes(total)}{told}")
    for one in versions:
        yield from changes_view(one.tensors, show_all)


def cleaned_view(found: CleanedVersions) -> Iterator[RenderableType]:
    """A row for each version that goes, and a sentence."""
    rows = (
        (one.name, one.kind, one.base_version, format_bytes(one.nbytes)) for one in found.removed
    )
    if found.removed:
        yield table("", ("version", "kind", "on", Column("size", right=True)), rows, whole=True)
    done = ("removed: ", "bold green") if found.is_removed else ("would remove: ", "bold")
    count = count_text(len(found.removed), "version")
    left = (
        f" and what is left of {count_text(len(found.leftovers), 'interrupted run')}"
        if found.leftovers
        else ""
    )
    yield Text.assemble(
        done,
        f"{count}{left} ({format_bytes(found.nbytes)}) of {safe(found.uri)}; kept: {len(found.kept)}",
    )
