"""The output of ``inspect`` for a checkpoint (tensors, items, meshes, and everything else), and of ``steps`` for a run.

For versions ``inspect`` shows the chain, sizes, and the versions that the newest needs. ``identify`` and ``sign`` show the root, the tops of the
tensors, and the files that were written; ``delta`` shows the changes of each tensor, and the size of the delta.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Iterator, Sequence
from itertools import count

from rich.console import RenderableType
from rich.text import Text

from reshard import (
    CheckpointInfo,
    CleanedVersions,
    DeltaReport,
    DeltaTensor,
    Identification,
    Item,
    StepInfo,
    TensorInfo,
    VersionInfo,
)
from reshard.answers.shared import RecordedMesh
from reshard.cli.tables import MOST_ROWS, Cell, Column, first_rows, table, warning
from reshard.cli.text import (
    TensorGroup,
    axes_text,
    chunks_text,
    count_text,
    duration_text,
    encoding_text,
    groups_of,
    partition_text,
    rate_text,
    safe,
    shape_text,
    sizes_text,
    some_text,
)
from reshard.geometry.sizes import format_bytes
from reshard.inspection.checkpoint_info import LeafInfo

MOST_IDS = 8
"""Device ids of a mesh that are shown."""

_STATES = {True: ("finished", "green"), False: ("not finished", "bold yellow")}


def inspection_view(
    info: CheckpointInfo, show_all: bool, most: int = MOST_ROWS
) -> Iterator[RenderableType]:
    """The checkpoint from top to bottom: its headline, its tensors in at most ``most`` rows, its meshes, and the rest."""
    size = f"{count_text(len(info.tensors), 'tensor')}, {format_bytes(info.nbytes)}"
    yield Text.assemble((safe(info.uri), "bold"), f": {info.format_and_style}, {size}")
    yield from _tensors(info, show_all, most)
    yield from map(_mesh_line, count(), info.meshes)
    yield from map(_item_line, info.items)
    yield from _others(info, show_all)


def _tensors(info: CheckpointInfo, show_all: bool, most: int) -> Iterator[RenderableType]:
    groups = groups_of(info.tensors.values(), _name, _alike, show_all)
    titles = (
        "tensor", Column("n", right=True, rank=1), "shape", "dtype", "chunks",
        Column("encoding", rank=2), "axes", ">bytes",
    )  # fmt: skip
    is_marked = len(info.meshes) > 1
    yield from first_rows(
        titles, groups, lambda g: _row(g, is_marked), "rows", show_all=show_all, most=most
    )


def _name(tensor: TensorInfo) -> str:
    return tensor.name


def _alike(tensor: TensorInfo) -> Hashable:
    layout = (tensor.axes, tensor.mesh, tensor.mesh_number, _split_text(tensor))
    return tensor.shape, tensor.dtype, _chunks(tensor), tensor.compressor, layout, tensor.is_key


def _row(group: TensorGroup[TensorInfo], is_marked: bool) -> tuple[Cell, ...]:
    tensor = group.first
    mesh = f" on m{tensor.mesh_number}" if is_marked and tensor.mesh_number is not None else ""
    return (
        group.name,
        f"{group.count:,}",
        shape_text(tensor.shape),
        tensor.dtype,
        _chunks(tensor),
        encoding_text(tensor),
        f"{_split_text(tensor)}{mesh}",
        format_bytes(sum(t.nbytes for t in group.members)),
    )


def _chunks(tensor: TensorInfo) -> str:
    return chunks_text(tensor.shape, tensor.chunks, tensor.chunk_shape, tensor.largest_chunk)


def _split_text(tensor: TensorInfo) -> str:
    """The split of a tensor: over the axes of a mesh, or as a ShardedVariable."""
    return axes_text(tensor.axes) if tensor.partition is None else partition_text(tensor.partition)


def _mesh_line(number: int, mesh: RecordedMesh) -> Text:
    devices = count_text(math.prod(mesh.shape), "device") + _order_text(mesh)
    sizes = sizes_text(mesh.axes, mesh.shape)
    types = zip(mesh.axes, mesh.axis_types or (), strict=False)
    others = [f"{safe(name)} {kind}" for name, kind in types if kind != "Auto"]
    more = f", axis types: {', '.join(others)}" if others else ""
    return Text(f"mesh m{number}: {sizes} ({devices}){more}")


def _order_text(mesh: RecordedMesh) -> str:
    """The devices' ids if they are not simply 0, 1, 2, …."""
    ids = mesh.device_ids
    if ids is None or ids == tuple(range(len(ids))):
        return ""
    return f": {', '.join(map(str, ids[:MOST_IDS]))}{', …' if len(ids) > MOST_IDS else ''}"


def _item_line(item: Item) -> Text:
    kind = "a tree" if item.is_tree else "not a tree, copied unchanged"
    where = f" in {safe(item.directory)}/" if item.directory else ""
    return Text(f"item {safe(item.name) or '(unnamed)'}: {kind}{where}")


def _others(info: CheckpointInfo, show_all: bool) -> Iterator[Text]:
    names = [_named(leaf) for leaf in info.leaves if not leaf.is_tensor]
    if names:
        shown = some_text(names, len(names) if show_all else 8)
        yield Text(f"{count_text(len(names), 'other leaf').replace('leafs', 'leaves')}: {shown}")
    keys = [t.name for t in info.tensors.values() if t.is_key]
    if keys:
        yield Text(f"{count_text(len(keys), 'PRNG key')}: {some_text(keys)}")
    if info.quantized:
        yield Text(f"quantised: {info.quantized}")
    with_digest = sum(t.digest is not None for t in info.tensors.values())
    yield Text(f"digests recorded: {with_digest:,} of {len(info.tensors):,} tensors")
    yield from map(warning, info.warnings)


def _named(leaf: LeafInfo) -> str:
    """The name of a leaf, and its kind if it is not read."""
    of_shape = f" of shape {list(leaf.shape)}" if leaf.shape else ""
    return f"{leaf.name} ({leaf.kind}{of_shape})" if leaf.kind else leaf.name


def steps_view(
    run: str, steps: Sequence[StepInfo], show_all: bool, most: int = MOST_ROWS
) -> Iterator[RenderableType]:
    """The headline, then the steps; of many steps the last ones, which people look for."""
    finished = sum(step.is_finished for step in steps)
    size = format_bytes(sum(step.nbytes for step in steps))
    yield Text.assemble(
        (safe(run), "bold"), f": {count_text(len(steps), 'step')}, {finished:,} finished, {size}"
    )
    shown = steps if show_all else steps[-most:]
    titles = ("folder", ">step", "state", Column("files", right=True, rank=1), ">size", "written")
    yield table("", titles, map(_step_row, shown), whole=show_all)
    if len(shown) < len(steps):
        yield Text(
            f"… and {len(steps) - len(shown):,} earlier steps; --all shows each", style="dim"
        )


def _step_row(step: StepInfo) -> tuple[Cell, ...]:
    written = "–" if step.written_at is None else f"{step.written_at:%Y-%m-%d %H:%M:%S} UTC"
    return (
        step.name,
        f"{step.step}",
        Text(*_STATES[step.is_finished]),
        f"{step.files:,}",
        format_bytes(step.nbytes),
        written,
    )


MOST_TOPS = 8


def identity_view(found: Identification, show_all: bool) -> Iterator[RenderableType]:
    """The headline, the tops, the files, and the root last, where people look for it."""
    yield Text.assemble(
        ("signed " if found.signer else "identified ", "bold green"),
        f"{count_text(len(found.tensors), 'tensor')}, {format_bytes(found.nbytes)}, of {safe(found.uri)} in "
        f"{duration_text(found.seconds)} ({rate_text(found.nbytes, found.seconds)})",
    )
    yield from first_rows(
        ("tensor", "top of its tree"),
        list(found.tensors.values()),
        lambda t: (t.name, t.top if show_all else f"{t.top[:32]}…"),
        "tensors",
        show_all=show_all,
        most=MOST_TOPS,
    )
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
    columns = ("tensor", ">changed", Column("of", right=True, rank=1), ">", ">stored")
    yield from first_rows(columns, found, _change, "tensors", show_all=show_all, most=MOST_CHANGED)


def _change(tensor: DeltaTensor) -> tuple[Cell, ...]:
    share = f"{tensor.changed / max(1, tensor.elements):.2%}"
    counts = f"{tensor.changed:,}", f"{tensor.elements:,}"
    return tensor.name, *counts, share, format_bytes(tensor.stored_bytes)


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
