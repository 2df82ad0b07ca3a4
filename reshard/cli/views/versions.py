"""The output of ``inspect`` for versions: the chain, sizes, and the versions that the newest needs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import RenderableType
from rich.text import Text

from reshard import CleanedVersions, VersionInfo
from reshard.cli.tables import Column, table
from reshard.cli.text import count_text, safe
from reshard.cli.views.delta import changes_view
from reshard.geometry.sizes import format_bytes

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
