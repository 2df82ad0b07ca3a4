"""What ``inspect`` shows of a checkpoint (tensors, items, meshes, and everything else), and ``steps`` of a run."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence

from rich.console import RenderableType
from rich.text import Text

from reshard import CheckpointInfo, DeviceMesh, Item, StepInfo, TensorInfo
from reshard.cli.grouping import TensorGroup, grouped, single
from reshard.cli.tables import MOST_ROWS, Cell, Column, cap_note, capped, table, warning
from reshard.cli.text import (
    axes_text,
    chunks_text,
    count_text,
    encoding_text,
    mesh_text,
    partition_text,
    safe,
    shape_text,
    some_text,
)
from reshard.geometry.sizes import format_bytes

Rows = Sequence[TensorGroup[TensorInfo]]

MOST_IDS = 8
"""Device ids of a mesh that are shown."""

_STATES = {True: ("finished", "green"), False: ("not finished", "bold yellow")}


def inspection_view(
    info: CheckpointInfo, show_all: bool, most: int = MOST_ROWS
) -> Iterator[RenderableType]:
    """The checkpoint from top to bottom: what it is, its tensors in at most ``most`` rows, its meshes, and the rest."""
    yield _headline(info)
    if info.tensors:
        yield from _tensors(info, show_all, most)
    yield from map(_mesh_line, mesh_marks(info.meshes).items())
    yield from map(_item_line, info.items)
    yield from _others(info, show_all)


def _headline(info: CheckpointInfo) -> Text:
    size = f"{count_text(len(info.tensors), 'tensor')}, {format_bytes(info.nbytes)}"
    return Text.assemble((safe(info.uri), "bold"), f": {info.format_and_style}, {size}")


def _tensors(info: CheckpointInfo, show_all: bool, most: int) -> Iterator[RenderableType]:
    groups = _groups(tuple(info.tensors.values()), show_all)
    shown = capped(groups, show_all, most)
    marks = mesh_marks(info.meshes)
    titles = (
        "tensor", Column("n", right=True, rank=1), "shape", "dtype", "chunks",
        Column("encoding", rank=2), "axes", ">bytes",
    )  # fmt: skip
    yield table("", titles, (_row(g, marks) for g in shown), whole=show_all)
    if note := cap_note(len(shown), len(groups), "rows"):
        yield Text(note, style="dim")


def _groups(tensors: Sequence[TensorInfo], show_all: bool) -> Rows:
    if show_all:
        return single(tensors, _name)
    return grouped(tensors, _name, _alike)


def _name(tensor: TensorInfo) -> str:
    return tensor.spec.name


def _alike(tensor: TensorInfo) -> Hashable:
    spec = tensor.spec
    storage = (spec.storage.cuts, spec.chunk_shape, tensor.encoding.compressor)
    return spec.shape, spec.dtype, storage, spec.layout, _split_text(tensor), tensor.is_key


def _row(group: TensorGroup[TensorInfo], marks: Mapping[DeviceMesh, str]) -> tuple[Cell, ...]:
    info, spec = group.first, group.first.spec
    mesh = spec.layout.device_mesh if spec.layout else None
    return (
        group.name,
        f"{group.count:,}",
        shape_text(spec.shape),
        spec.dtype,
        chunks_text(spec),
        encoding_text(info.encoding),
        f"{_split_text(info)}{f' on {marks[mesh]}' if mesh and len(marks) > 1 else ''}",
        format_bytes(sum(t.spec.nbytes for t in group.members)),
    )


def _split_text(info: TensorInfo) -> str:
    """How the tensor was split: over the axes of a mesh, or as a ShardedVariable."""
    return axes_text(info.spec.layout) if info.partition is None else partition_text(info.partition)


def mesh_marks(meshes: Sequence[DeviceMesh]) -> dict[DeviceMesh, str]:
    """A short name for each mesh."""
    return {mesh: f"m{i}" for i, mesh in enumerate(meshes)}


def _mesh_line(named: tuple[DeviceMesh, str]) -> Text:
    mesh, mark = named
    devices = count_text(mesh.size, "device") + _order_text(mesh)
    return Text(f"mesh {mark}: {mesh_text(mesh)} ({devices}){_types_text(mesh)}")


def _order_text(mesh: DeviceMesh) -> str:
    """The devices' ids if they are not simply 0, 1, 2, …."""
    ids = mesh.device_ids
    if ids is None or ids == tuple(range(mesh.size)):
        return ""
    return f": {', '.join(map(str, ids[:MOST_IDS]))}{', …' if len(ids) > MOST_IDS else ''}"


def _types_text(mesh: DeviceMesh) -> str:
    types = zip(mesh.axis_names, mesh.axis_types or (), strict=False)
    others = [f"{safe(name)} {kind}" for name, kind in types if kind != "Auto"]
    return f", axis types: {', '.join(others)}" if others else ""


def _item_line(item: Item) -> Text:
    kind = "a tree" if item.is_tree else "not a tree, copied unchanged"
    where = f" in {safe(item.directory)}/" if item.directory else ""
    return Text(f"item {safe(item.name) or '(unnamed)'}: {kind}{where}")


def _others(info: CheckpointInfo, show_all: bool) -> Iterator[Text]:
    names = [leaf.name for leaf in info.leaves if not leaf.tensor]
    if names:
        shown = some_text(names, len(names) if show_all else 8)
        yield Text(f"{count_text(len(names), 'other leaf').replace('leafs', 'leaves')}: {shown}")
    keys = [t.spec.name for t in info.tensors.values() if t.is_key]
    if keys:
        yield Text(f"{count_text(len(keys), 'PRNG key')}: {some_text(keys)}")
    with_digest = sum(t.digest is not None for t in info.tensors.values())
    yield Text(f"digests recorded: {with_digest:,} of {len(info.tensors):,} tensors")
    yield from map(warning, info.warnings)


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
