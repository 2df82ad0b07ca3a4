"""The output of ``plan``: each tensor's layout, storage and cost, totals, memory, warnings, and with --shares the sources."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Iterator, Sequence
from itertools import groupby, islice

from rich.console import RenderableType
from rich.text import Text

from reshard import (
    ConversionPlan,
    DeviceMesh,
    Grid,
    MultiConversionPlan,
    PlannedIdentity,
    PlannedTensor,
    TensorLayout,
)
from reshard.answers.shared import Axes, MeshDocument, Shape
from reshard.cli.tables import (
    MOST_ROWS,
    Cell,
    Column,
    cap_note,
    capped,
    sources_text,
    table,
    warnings_of,
)
from reshard.cli.text import (
    TensorGroup,
    axes_text,
    chunks_text,
    count_of_parts,
    count_text,
    dtype_text,
    duration_text,
    groups_of,
    map_text,
    partition_text,
    parts_text,
    ratio_text,
    safe,
    shape_text,
    sizes_text,
    some_text,
)
from reshard.cli.views.report import planned_requests, planned_time
from reshard.conversion.plan import PlanTotals
from reshard.geometry.sizes import format_bytes

Groups = Sequence[TensorGroup[PlannedTensor]]

CHUNKS_ARE_NOT_SHARDS = (
    "shards: what each device holds. chunks: how files store it; "
    "small shards share a chunk, large ones take several (--chunk-bytes)."
)

MOST_GROUPS = 8
MOST_SHARDS = 16
MOST_SOURCES = 6


def planned_view(
    found: ConversionPlan | MultiConversionPlan, show_all: bool, shares: bool, most: int
) -> Iterator[RenderableType]:
    """A plan, or those of several targets and their cost together; then the requests, and the time on hosts."""
    said: set[str] = set()
    for one in found.plans if isinstance(found, MultiConversionPlan) else (found,):
        yield from plan_view(one, show_all, said, most)
        if shares:
            yield from shares_view(plan_groups(one.tensors, show_all), show_all)
    if isinstance(found, MultiConversionPlan):
        yield from joint_view(found)
    yield from planned_requests(found.requests)
    yield from planned_time(found.timed or None)


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
    sources = _meshes({tensor.source_mesh for tensor in planned.tensors})
    targets = _meshes({tensor.target_mesh for tensor in planned.tensors})
    yield Text(f"mesh {sources} → mesh {targets}")
    groups = plan_groups(planned.tensors, show_all)
    shown = capped(groups, show_all, most)
    yield table("", _columns(planned.tensors), map(_row, shown), whole=show_all)
    if note := cap_note(len(shown), len(groups), "rows"):
        yield Text(note, style="dim")
    if any(_chunks_differ(t) for t in planned.tensors):
        yield Text(CHUNKS_ARE_NOT_SHARDS, style="dim")
    yield from map(Text, _totals(planned))
    yield from warnings_of(planned.warnings, said)


def joint_view(joint: MultiConversionPlan) -> Iterator[Text]:
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
    return groups_of(tensors, planned_name, _alike, show_all)


def planned_name(tensor: PlannedTensor) -> str:
    """The name, or both names if it changes."""
    return sources_text(tensor.sources, tensor.source, tensor.target)


def _alike(tensor: PlannedTensor) -> Hashable:
    before = (tensor.source_dtype, tensor.source_mesh, tensor.source_axes, tensor.source_shards)
    after = (tensor.target_dtype, tensor.target_mesh, tensor.target_axes, tensor.target_shards)
    stored = (_chunks_before(tensor), _chunks_after(tensor), _split_text(tensor))
    price = (tensor.tasks, tensor.decoded_bytes, tensor.written_bytes, tensor.task_bytes)
    kind = (tensor.strategy, tensor.change)
    return tensor.shape, before, after, stored, kind, tensor.source_bytes, price


def _columns(tensors: Sequence[PlannedTensor]) -> tuple[str | Column, ...]:
    """Columns of the target come first; columns of the source follow if there is room."""
    is_cast = any(t.source_dtype != t.target_dtype for t in tensors)
    is_mapped = any(t.change is not None for t in tensors)
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
        *((Column("elements", rank=1),) if is_mapped else ()),
        Column("tasks", right=True, rank=4),
        ">read",
        Column("written", right=True, rank=1),
    )


def _row(group: TensorGroup[PlannedTensor]) -> tuple[Cell, ...]:
    first = group.first
    decoded = format_bytes(sum(t.decoded_bytes for t in group.members))
    return (
        group.name,
        f"{group.count:,}",
        shape_text(first.shape),
        dtype_text(first.source_dtype, first.target_dtype),
        f"{axes_text(first.source_axes)} → {_split_text(first)}",
        _shards_text(first.source_shards, first.source_shard_shape, first.shape),
        _shards_text(first.target_shards, first.target_shard_shape, first.shape),
        _chunks_before(first),
        _chunks_after(first),
        first.strategy,
        *(() if first.change is None else (first.change,)),
        f"{sum(t.tasks for t in group.members):,}",
        f"{decoded}{_read_again(first)}",
        format_bytes(sum(t.written_bytes for t in group.members)),
    )


def _shards_text(shards: Shape | None, largest: Shape | None, shape: Shape) -> str:
    """The shards of a tensor by a layout, or a dash without one."""
    if shards is None or largest is None:
        return "–"
    return count_of_parts(math.prod(shards), largest, shape)


def _chunks_before(tensor: PlannedTensor) -> str:
    chunk, largest = tensor.source_chunk_shape, tensor.source_largest_chunk
    return chunks_text(tensor.shape, tensor.source_chunks, chunk, largest)


def _chunks_after(tensor: PlannedTensor) -> str:
    chunk, largest = tensor.target_chunk_shape, tensor.target_largest_chunk
    return chunks_text(tensor.shape, tensor.target_chunks, chunk, largest)


def _read_again(tensor: PlannedTensor) -> str:
    """The number of times that the source is decoded, if that is more than once."""
    ratio = ratio_text(tensor.amplification)
    return "" if ratio == ratio_text(1) else f" ({ratio})"


def _chunks_differ(tensor: PlannedTensor) -> bool:
    """True if the target's chunks are other boxes than its shards."""
    if tensor.target_shards is None:
        return False
    shards = (math.prod(tensor.target_shards), tensor.target_shard_shape)
    return shards != (tensor.target_chunks, tensor.target_largest_chunk)


def _split_text(tensor: PlannedTensor) -> str:
    """The split of the target, by mesh axes or otherwise."""
    if tensor.partition is None or any(tensor.target_axes or ()):
        return axes_text(tensor.target_axes)
    return partition_text(tensor.partition)


def _meshes(meshes: set[MeshDocument | None]) -> str:
    known = sorted({sizes_text(m.axes, m.shape) for m in meshes if m is not None})
    return "; ".join(f"({m})" for m in known[:4]) + ("; …" if known[4:] else "") or "not recorded"


def _totals(planned: ConversionPlan) -> Iterator[str]:
    plan = planned.totals
    if planned.map is not None:
        yield map_text(planned.map)
    yield (
        f"total: {count_text(len(planned.tensors), 'tensor')} in {count_text(plan.tasks, 'task')}; "
        f"reads {format_bytes(plan.decoded_bytes)}, writes {format_bytes(plan.written_bytes)}, "
        f"amplification {ratio_text(plan.amplification)}"
    )
    yield _memory(plan)
    if planned.quantized:
        yield f"quantised: {planned.quantized}"
    if planned.identity is not None:
        yield _identity(planned.identity)
    if planned.free_bytes is not None:
        yield f"space: {format_bytes(planned.free_bytes)} free at the target"
    if planned.target is None:
        yield "no target was named, so free space and existing files were not checked"
    if planned.carried:
        yield f"copied unchanged: {some_text(planned.carried)}"
    if planned.dropped:
        yield f"left out: {some_text(planned.dropped)}"


def _memory(plan: PlanTotals) -> str:
    metadata = (
        f" and {format_bytes(plan.metadata_bytes)} of metadata" if plan.metadata_bytes else ""
    )
    processes = f" in {plan.processes} processes" if plan.processes else ""
    return (
        f"memory: {format_bytes(plan.peak_bytes)} of buffers at the worst moment{metadata}, "
        f"{format_bytes(plan.max_memory)} allowed; {count_text(plan.workers, 'worker')}{processes}"
    )


def _identity(found: PlannedIdentity) -> str:
    if found.how == "carry":
        return "identity: carried from the source; nothing is read again"
    decoded = f", {format_bytes(found.decoded_bytes)} of it decoded" if found.decoded_bytes else ""
    done = "computed" if found.how == "compute" else "checked"
    return (
        f"identity: {done} in one pass; reads {format_bytes(found.read_bytes)} of the target again{decoded}, about "
        f"{duration_text(found.core_s)} of a core"
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
    return max(grid.count for grid in _grids(tensor)) > 1


def _grids(tensor: PlannedTensor) -> tuple[Grid, Grid]:
    """The layouts' cuts of the source and of the target; a tensor without a layout is whole."""
    sides = (tensor.source_mesh, tensor.source_axes), (tensor.target_mesh, tensor.target_axes)
    source, target = (_grid(tensor, mesh, axes) for mesh, axes in sides)
    return source, target


def _grid(tensor: PlannedTensor, mesh: MeshDocument | None, axes: Axes | None) -> Grid:
    if mesh is None or axes is None:
        return Grid.whole(tensor.shape)
    layout = TensorLayout(axes, DeviceMesh(mesh.shape, mesh.axes))
    return layout.grid(tensor.shape, tensor.target)


def _group(group: TensorGroup[PlannedTensor]) -> Iterator[RenderableType]:
    source, target = _grids(group.first)
    cut = f"source shards {parts_text(source)} → target shards {parts_text(target)}"
    yield Text.assemble((safe(group.name), "bold"), f"\n{cut}")
    shares = group.first.shares or ()
    by_target = groupby(shares, key=lambda share: share[0])
    rows = [(str(shard), _sources(found)) for shard, found in islice(by_target, MOST_SHARDS)]
    yield table("", (">target shard", "source shard: share of the target's bytes"), rows)
    if target.count > len(rows):
        note = f"… and {target.count - len(rows):,} more target shards; --json has each"
        yield Text(note, style="dim")


def _sources(found: Iterable[tuple[int, int, float]]) -> str:
    """The source shards in order, or the largest shares if there are many."""
    largest = sorted(found, key=lambda s: (-s[2], s[1]))
    shown = sorted(largest[:MOST_SOURCES], key=lambda s: s[1])
    text = ", ".join(f"{source}: {100 * share:.4g}%" for _, source, share in shown)
    more = len(largest) - len(shown)
    return f"{text}, and {more:,} more" if more else text
