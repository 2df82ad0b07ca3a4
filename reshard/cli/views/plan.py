"""What ``plan`` shows: each tensor's way, the totals, the memory, and what to watch out for."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from rich.console import RenderableType
from rich.text import Text

from reshard.cli.grouping import Group, grouped, single
from reshard.cli.tables import Cell, Name, cap_note, capped, table, warning
from reshard.cli.text import (
    axes_text,
    chunks_text,
    count_text,
    dtype_text,
    mesh_text,
    partition_text,
    ratio_text,
    safe,
    shape_text,
    some_text,
)
from reshard.layout.mesh import DeviceMesh
from reshard.layout.sizes import format_bytes
from reshard.layout.tensor_spec import TensorSpec
from reshard.planning.joint_plan import JointPlan
from reshard.planning.move import Plan

if TYPE_CHECKING:
    from reshard.engine.conversion import ConversionPlan, PlannedTensor

    Groups = Sequence[Group[PlannedTensor]]


def plan_view(planned: ConversionPlan, show_all: bool) -> Iterator[RenderableType]:
    """The plan as a person reads it: rows, then totals, then memory, then warnings."""
    yield Text(f"{safe(planned.source)} → {safe(planned.target)}", style="bold")
    yield Text(_meshes_line(planned.tensors))
    groups = plan_groups(planned.tensors, show_all)
    shown = capped(groups, show_all)
    titles = (
        "tensor", ">n", "shape\ndtype", "chunks\n→ chunks", "strategy\ntasks", ">read\nwritten",
        ">ampl.\nmemory",
    )  # fmt: skip
    yield table("", titles, map(_row, shown))
    if note := cap_note(len(shown), len(groups), "rows"):
        yield Text(note, style="dim")
    yield from map(Text, _totals(planned))
    yield from map(warning, planned.warnings)


def joint_view(joint: JointPlan) -> Iterator[Text]:
    """What several targets cost together, and what of it is read again."""
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
    """A group for each row: tensors that move alike, or each its own."""
    if show_all:
        return single(tensors, planned_name)
    return grouped(tensors, planned_name, _alike)


def planned_name(tensor: PlannedTensor) -> str:
    """The name, or both where it changes."""
    source, target = tensor.source.name, tensor.target.name
    return source if source == target else f"{source} → {target}"


def _alike(tensor: PlannedTensor) -> Hashable:
    move = tensor.move
    split = _geometry(tensor.target), _split_text(tensor)
    return _geometry(tensor.source), split, move.strategy, move.price


def _geometry(spec: TensorSpec) -> Hashable:
    return spec.shape, spec.dtype, spec.storage.cuts, spec.chunk_shape, spec.layout


def _row(group: Group[PlannedTensor]) -> tuple[Cell, ...]:
    source, target, move = group.first.source, group.first.target, group.first.move
    tasks = sum(t.move.price.tasks for t in group.members)
    return (
        Name(group.name, f"{axes_text(source.layout)} → {_split_text(group.first)}"),
        f"{group.count:,}",
        f"{shape_text(source.shape)}\n{dtype_text(source.dtype, target.dtype)}",
        f"{chunks_text(source)}\n→ {chunks_text(target)}",
        f"{move.strategy}\n{count_text(tasks, 'task')}",
        f"{format_bytes(sum(t.move.price.decoded_bytes for t in group.members))}\n"
        f"{format_bytes(sum(t.move.price.written_bytes for t in group.members))}",
        f"{ratio_text(move.price.amplification)}\n{format_bytes(move.price.task_bytes)}",
    )


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
    known = sorted(mesh_text(m) for m in meshes if m is not None)
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
    if planned.carried:
        yield f"carried along unchanged: {some_text(planned.carried)}"
    if planned.dropped:
        yield f"left out: {some_text(planned.dropped)}"


def _memory(plan: Plan) -> str:
    metadata = (
        f" and {format_bytes(plan.metadata_bytes)} of metadata" if plan.metadata_bytes else ""
    )
    return (
        f"memory: {format_bytes(plan.peak_bytes)} of buffers at the worst moment{metadata}, "
        f"{format_bytes(plan.allowed_bytes or plan.max_memory)} allowed; {count_text(plan.workers, 'worker')}"
    )
