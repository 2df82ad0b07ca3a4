"""The layout of a lazy variable's path, and its sharding: that layout on real devices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from reshard.errors import LayoutError
from reshard.layout.device_mesh import DeviceMesh, same_axes
from reshard.layout.layout_map import LayoutMap
from reshard.layout.tensor_layout import TensorLayout
from reshard.variables.distribute import on_devices

if TYPE_CHECKING:
    from jax.sharding import NamedSharding


def layout_at(
    layout_map: LayoutMap, path: str, rank: int, *, is_rng_state: bool = False
) -> TensorLayout:
    """The map's layout of the variable ``path``, else a replicated one: None for each of ``rank`` dimensions, as in Keras.

    The state of random number generators is always replicated. Raises LayoutError if there is no mesh.
    """
    layout_map.scope_names.look_up(path)
    layout = None if is_rng_state else layout_map[path]
    if layout is None:
        mesh = _default_mesh(layout_map.get_default_mesh(), path, is_rng_state)
        layout = TensorLayout((None,) * rank, mesh)
    return layout


def sharding_of(
    layout_map: LayoutMap, path: str, shape: Sequence[int], *, is_rng_state: bool = False
) -> NamedSharding:
    """The sharding of the variable ``path``: its layout on devices.

    A mesh without devices uses all of ``jax.devices()`` if their number fits. Raises LayoutError if there is no mesh, no
    device, or the layout does not fit ``shape``.
    """
    # A replicated array of any rank has no dimensions in jax's spec: P().
    layout = layout_at(layout_map, path, 0, is_rng_state=is_rng_state)
    layout = _on_devices(layout, layout_map.get_default_mesh(), path)
    layout.shard_shape(shape, path)
    return layout.backend_layout


def _default_mesh(mesh: DeviceMesh | None, path: str, is_rng_state: bool) -> DeviceMesh:
    if mesh is None:
        why = "is the state of a random number generator" if is_rng_state else "matches no key"
        raise LayoutError(
            f"{path!r} {why}, so it is replicated, but the layout map has no default mesh; make "
            f"the map with LayoutMap(mesh)"
        )
    return mesh


def _on_devices(layout: TensorLayout, default: DeviceMesh | None, path: str) -> TensorLayout:
    mesh = layout.device_mesh
    if (
        mesh is not None
        and mesh.devices is None
        and default is not None
        and same_axes(mesh, default)
    ):
        layout = layout.with_mesh(default)
    try:
        placed = on_devices(layout)
        wanted = None if default is None else on_devices(TensorLayout((), default))
    except LayoutError as error:
        raise LayoutError(f"{path!r} cannot get its value: {error}") from None
    if wanted is not None and placed.device_mesh is not None and wanted.device_mesh is not None:
        _check_same_devices(placed.device_mesh, wanted.device_mesh, path)
    return placed


def _check_same_devices(mesh: DeviceMesh, default: DeviceMesh, path: str) -> None:
    found, wanted = (
        set(m.devices.flat) if m.devices is not None else set() for m in (mesh, default)
    )
    if found != wanted:
        raise LayoutError(
            f"the layout of {path!r} has another mesh than the layout map: {mesh} has devices {_ids(found)}, "
            f"the default {default} has {_ids(wanted)}; jax cannot compute with both at once, so give both "
            f"the same devices"
        )


def _ids(devices: set[Any]) -> list[int]:
    return sorted(getattr(device, "id", -1) for device in devices)
