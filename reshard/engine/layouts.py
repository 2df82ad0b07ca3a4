"""Which part of each target tensor every device needs, by a layout file, a LayoutMap, or the source."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from msgspec import Struct

from reshard.errors import LayoutError
from reshard.layout.grid import Grid
from reshard.layout.layout_file import LayoutFile, load_layout, parse_layout
from reshard.layout.layout_map import LayoutMap
from reshard.layout.mesh import DeviceMesh, TensorLayout, parse_mesh, show_axes
from reshard.layout.resolve import layout_for, overlaps, unmatched_rules
from reshard.layout.tensor_spec import TensorSpec


class SameAxes(Struct, frozen=True):
    """Every tensor split by the axes that its source was, over another mesh."""

    mesh: DeviceMesh


Layout = LayoutFile | LayoutMap | SameAxes


class Split(Struct, frozen=True):
    """Layout and slices of one target tensor, and how it is partitioned beyond mesh axes."""

    layout: TensorLayout | None
    slices: Grid
    partition: Mapping[str, Any] | None = None


def layout_of(
    layout: str | os.PathLike[str] | Mapping[str, Any] | LayoutFile | LayoutMap | None,
    mesh: str | DeviceMesh | None,
) -> Layout | None:
    """What the user gave as one Layout: a file's path or content, or what it stands for.

    ``mesh`` takes the place of a layout file's own; alone it keeps the source's axes. Raises LayoutError where either makes no sense.
    """
    if isinstance(mesh, str):
        mesh = parse_mesh(mesh)
    if not isinstance(mesh, DeviceMesh | None):
        raise LayoutError(
            f"mesh is {mesh!r}; expected a DeviceMesh or text such as 'data=4,model=2'"
        )
    mesh = mesh and mesh.abstract
    if isinstance(layout, LayoutMap):
        if mesh is not None:
            raise LayoutError(
                "a LayoutMap has a mesh of its own; leave 'mesh' out, or give it to the LayoutMap"
            )
        return layout
    if layout is None:
        return None if mesh is None else SameAxes(mesh)
    file = _file(layout)
    return file if mesh is None else file.with_mesh(mesh)


def _file(layout: str | os.PathLike[str] | Mapping[str, Any] | LayoutFile) -> LayoutFile:
    if isinstance(layout, LayoutFile):
        return layout
    if isinstance(layout, Mapping):
        return parse_layout(layout)
    if not isinstance(layout, str | os.PathLike):
        raise LayoutError(
            f"layout is {layout!r}; expected the path of a layout file, its content as a mapping, or a LayoutMap"
        )
    return load_layout(os.fspath(layout))


def split(target: TensorSpec, source: TensorSpec, layout: Layout | None) -> Split:
    """How ``target`` is split; without a layout, or by a file of changes only, as the source was."""
    if isinstance(layout, LayoutMap):
        return _split_by_map(target, layout)
    if isinstance(layout, SameAxes):
        return _split_again(target, source, layout.mesh)
    if layout is None or not layout.has_layout:
        return Split(source.layout, source.slices)
    resolved = layout_for(layout, target.name, target.shape, target.dtype)
    recorded = resolved.layout if resolved.layout.device_mesh is not None else None
    return Split(recorded, resolved.slices, resolved.partition)


def _split_again(target: TensorSpec, source: TensorSpec, mesh: DeviceMesh) -> Split:
    axes = source.layout.axes if source.layout is not None else ()
    try:
        layout = TensorLayout(axes, mesh)
    except LayoutError as error:
        raise LayoutError(
            f"{target.name!r} keeps the source's axes {show_axes(axes)} over {mesh}: {error}; "
            "name the mesh's axes as the source does, or say with a layout how tensors are split"
        ) from None
    return Split(layout, layout.grid(target.shape, target.name))


def _split_by_map(target: TensorSpec, layout: LayoutMap) -> Split:
    found = layout[target.name]
    if found is None:
        if layout.device_mesh is None:
            return Split(None, Grid.whole(target.shape))
        found = TensorLayout((), layout.device_mesh)
    padded = (*found.axes, *[None] * (len(target.shape) - len(found.axes)))
    found = TensorLayout(padded, found.abstract.device_mesh)
    return Split(found, found.grid(target.shape, target.name))


def layout_warnings(layout: Layout | None, names: Sequence[str]) -> Iterator[str]:
    """Rules that match nothing, and tensors that several rules match; one sentence each."""
    if isinstance(layout, LayoutMap):
        matched = {key for name in names for key in layout.match(name)}
        yield from (
            f"the layout map's key {k!r} matches no tensor" for k in layout if k not in matched
        )
    elif isinstance(layout, LayoutFile):
        for rule in unmatched_rules(layout, names):
            yield f"{rule.label or repr(rule.match)} matches no tensor"
        for overlap in overlaps(layout, names):
            some = ", ".join(overlap.names[:3]) + (", …" if len(overlap.names) > 3 else "")
            count = len(overlap.names)
            both = "1 tensor matches" if count == 1 else f"{count} tensors match"
            yield (
                f"{both} both {overlap.winner} and {overlap.shadowed}; the first decides ({some})"
            )
