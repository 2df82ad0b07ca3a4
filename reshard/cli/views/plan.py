"""What ``plan`` shows: each tensor's layout, storage and cost, totals, memory, warnings, and with --shares the sources."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from itertools import groupby, islice
from typing import TYPE_CHECKING

from rich.console import RenderableType
from rich.text import Text

from reshard import DeviceMesh, Grid, TensorSpec
from reshard.cli.grouping import TensorGroup, grouped, single
from reshard.cli.tables import (
    MOST_ROWS,
    Cell,
    Column,
    cap_note,
    capped,
    renamed,
    table,
    warnings_of,
)
from reshard.cli.text import (
    axes_text,
    chunks_text,
    count_text,
    dtype_text,
    mesh_text,
    partition_text,
    parts_text,
    ratio_text,
    safe,
    shape_text,
    some_text,
)
from reshard.geometry.sizes import format_bytes
from reshard.planning.multi_plan import MultiPlan
from reshard.planning.shares import Share, shares
from reshard.planning.tensor_plan import Plan, TensorPlan

if TYPE_CHECKING:
    from reshard import ConversionPlan, PlannedTensor

    Groups = Sequence[TensorGroup[PlannedTensor]]

CHUNKS_ARE_NOT_SHARDS = (
    "shards: what each device holds. chunks: how files store it; "
    "small shards share a chunk, large ones take several (--chunk-bytes)."
)

MOST_GROUPS = 8
MOST_SHARDS = 16
MOST_SOURCES = 6


def plan_view(
    planned: ConversionPlan,
    show_all: bool,
    said: set[str] | None = None,
    most: int = MOST_ROWS,
) -> Iterator[RenderableType]:
    """The plan as a person reads it: at most ``most`` rows, totals, memory, warnings. Warnings in ``said`` are not
    repeated."""
    target = "a target" if planned.target is None else planned.target
    yield Text(f"{safe(planned.source)} → {safe(target)}", style="bold")
    yield Text(_meshes_line(planned.tensors))
    groups = plan_groups(planned.tensors, show_all)
    shown = capped(groups, show_all, most)
    yield table("", _columns(planned.tensors), map(_row, shown), whole=show_all)
    if note := cap_note(len(shown), len(groups), "rows"):
        yield Text(note, style="dim")
    if any(_chunks_differ(t) for t in planned.tensors):
        yield Text(CHUNKS_ARE_NOT_SHARDS, style="dim")
    yield from map(Text, _totals(planned))
    yield from warnings_of(planned.warnings, said)


def joint_view(joint: MultiPlan) -> Iterator[Text]:
    """The cost of several targets together, and the bytes that are read twice."""
    again = (
        f", {format_bytes(joint.repeated_bytes)} of it again"
        if joint.repeated_bytes
        else ", each byte once"
    )
    yield Text(
        f"together: {count_text(joint.tasks, 'task')} for {count_text(len(joint.plans), 'target')}; reads "
        f"{format_bytes(joint.decoded_bytes)}{again}, writes {format_bytes(joint.written_bytes)}; "
        f"{format_bytes(joint.peak_bytes)} of buffers at the worst moment"
    )


def plan_groups(tensors: Sequence[PlannedTensor], show_all: bool) -> Groups:
    """A group for each row: tensors that move alike, or each tensor alone."""
    if show_all:
        return single(tensors, planned_name)
    return grouped(tensors, planned_name, _alike)


def planned_name(tensor: PlannedTensor) -> str:
    """The name, or both names if it changes."""
    return renamed(tensor.source.name, tensor.target.name)


def _alike(tensor: PlannedTensor) -> Hashable:
    split = _geometry(tensor.target), _split_text(tensor)
    return (
        _geometry(tensor.source),
        split,
        tensor.target_shards,
        tensor.plan.strategy,
        tensor.plan.price,
    )


def _geometry(spec: TensorSpec) -> Hashable:
    return spec.shape, spec.dtype, spec.storage.cuts, spec.chunk_shape, spec.layout


def _columns(tensors: Sequence[PlannedTensor]) -> tuple[str | Column, ...]:
    """Columns of the target come first; columns of the source follow if there is room."""
    is_cast = any(t.source.dtype != t.target.dtype for t in tensors)
    return (
        "tensor",
        Column("n", right=True, rank=3),
        "shape",
        Column("dtype", rank=0 if is_cast else 2),
        Column("axes → axes", rank=7),
        Column("from shards", rank=6),
        "shards",
        Column("from chunks", rank=5),
        "chunks",
        "strategy",
        Column("tasks", right=True, rank=4),
        ">read",
        Column("written", right=True, rank=1),
    )


def _row(group: TensorGroup[PlannedTensor]) -> tuple[Cell, ...]:
    source, target, plan = group.first.source, group.first.target, group.first.plan
    tasks = sum(t.plan.price.tasks for t in group.members)
    return (
        group.name,
        f"{group.count:,}",
        shape_text(source.shape),
        dtype_text(source.dtype, target.dtype),
        f"{axes_text(source.layout)} → {_split_text(group.first)}",
        _shards_text(group.first.source_shards),
        _shards_text(group.first.target_shards),
        chunks_text(source),
        chunks_text(target),
        plan.strategy,
        f"{tasks:,}",
        f"{format_bytes(sum(t.plan.price.decoded_bytes for t in group.members))}{_read_again(plan)}",
        format_bytes(sum(t.plan.price.written_bytes for t in group.members)),
    )


def _shards_text(shards: Grid | None) -> str:
    """How a layout cuts a tensor, or a dash if there is no layout."""
    return "–" if shards is None else parts_text(shards)


def _read_again(plan: TensorPlan) -> str:
    """How often the source is decoded, if that is more than once."""
    ratio = ratio_text(plan.price.amplification)
    return "" if ratio == ratio_text(1) else f" ({ratio})"


def _chunks_differ(tensor: PlannedTensor) -> bool:
    shards = tensor.target_shards
    return shards is not None and shards != tensor.target.storage


def _split_text(tensor: PlannedTensor) -> str:
    """How the target is split, by mesh axes or otherwise."""
    layout, partition = tensor.target.layout, tensor.partition
    if partition is None or (layout is not None and any(layout.axes)):
        return axes_text(layout)
    return partition_text(partition)


def _meshes_line(tensors: Iterable[PlannedTensor]) -> str:
    sides = [(t.source.layout, t.target.layout) for t in tensors]
    sources = {s.device_mesh for s, _ in sides if s is not None}
    targets = {t.device_mesh for _, t in sides if t is not None}
    return f"mesh {_meshes(sources)} → mesh {_meshes(targets)}"


def _meshes(meshes: set[DeviceMesh | None]) -> str:
    known = sorted({mesh_text(m) for m in meshes if m is not None})
    return "; ".join(f"({m})" for m in known[:4]) + ("; …" if known[4:] else "") or "not recorded"


def _totals(planned: ConversionPlan) -> Iterator[str]:
    plan = planned.plan
    yield (
        f"total: {count_text(len(planned.tensors), 'tensor')} in {count_text(plan.tasks, 'task')}; "
        f"reads {format_bytes(plan.decoded_bytes)}, writes {format_bytes(plan.written_bytes)}, "
        f"amplification {ratio_text(plan.amplification)}"
    )
    yield _memory(plan)
    if planned.free_bytes is not None:
        yield f"space: {format_bytes(planned.free_bytes)} free at the target"
    if planned.target is None:
        yield "no target was named, so free space and existing files were not checked"
    if planned.carried:
        yield f"copied unchanged: {some_text(planned.carried)}"
    if planned.dropped:
        yield f"left out: {some_text(planned.dropped)}"


def _memory(plan: Plan) -> str:
    metadata = (
        f" and {format_bytes(plan.metadata_bytes)} of metadata" if plan.metadata_bytes else ""
    )
    processes = f" in {plan.processes} processes" if plan.processes else ""
    return (
        f"memory: {format_bytes(plan.peak_bytes)} of buffers at the worst moment{metadata}, "
        f"{format_bytes(plan.allowed_bytes or plan.max_memory)} allowed; {count_text(plan.workers, 'worker')}{processes}"
    )


def shares_view(groups: Groups, show_all: bool) -> Iterator[RenderableType]:
    """A table for each group's first tensor; the others of the group have the same shares."""
    cut = [g for g in groups if _is_cut(g.first)]
    shown = cut if show_all else cut[:MOST_GROUPS]
    for group in shown:
        yield from _group(group)
    if note := cap_note(len(shown), len(cut), "tensors that are cut"):
        yield Text(note, style="dim")


def _is_cut(tensor: PlannedTensor) -> bool:
    return tensor.source.slices.count > 1 or tensor.target.slices.count > 1


def _group(group: TensorGroup[PlannedTensor]) -> Iterator[RenderableType]:
    source, target = group.first.source.slices, group.first.target.slices
    cut = f"source shards {parts_text(source)} → target shards {parts_text(target)}"
    yield Text.assemble((safe(group.name), "bold"), f"\n{cut}")
    by_target = groupby(shares(group.first.plan), key=lambda share: share.target)
    rows = [(str(shard), _sources(found)) for shard, found in islice(by_target, MOST_SHARDS)]
    yield table("", (">target shard", "source shard: share of the target's bytes"), rows)
    if target.count > len(rows):
        note = f"… and {target.count - len(rows):,} more target shards; --json has each"
        yield Text(note, style="dim")


def _sources(found: Iterable[Share]) -> str:
    """The source shards in order, or the largest shares if there are many."""
    largest = sorted(found, key=lambda s: (-s.share, s.source))
    shown = sorted(largest[:MOST_SOURCES], key=lambda s: s.source)
    text = ", ".join(f"{s.source}: {100 * s.share:.4g}%" for s in shown)
    more = len(largest) - len(shown)
    return f"{text}, and {more:,} more" if more else text
