"""Converts meshes and layouts to and from ``jax.sharding``; jax is imported only when that is needed.

A mesh without devices becomes an ``AbstractMesh``, one with devices a ``Mesh``. Axis types are kept. Anything that
a TensorLayout cannot express (unconstrained dimensions, unreduced or reduced axes) raises LayoutError.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from reshard.errors import LayoutError
from reshard.layout.axes import show_axes
from reshard.layout.device_mesh import DeviceMesh, DevicesLike, on_all_devices
from reshard.layout.tensor_layout import TensorLayout

if TYPE_CHECKING:
    from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec


def is_from_jax(value: object, *kinds: str) -> bool:
    """True for an instance of one of these classes of ``jax.sharding``; False if jax is not loaded."""
    jax = sys.modules.get("jax")
    classes = tuple(getattr(jax.sharding, kind) for kind in kinds) if jax is not None else ()
    return isinstance(value, classes)


def mesh_from_jax(mesh: Mesh | AbstractMesh) -> DeviceMesh:
    """The same axes, sizes, axis types and devices; its ``.abstract`` has no devices."""
    from jax.sharding import AbstractMesh, Mesh

    if not isinstance(mesh, Mesh | AbstractMesh):
        raise LayoutError(
            f"expected a jax.sharding.Mesh or AbstractMesh, found a {type(mesh).__name__}"
        )
    types = None if mesh.axis_types is None else [str(t.name) for t in mesh.axis_types]
    devices = mesh.devices if isinstance(mesh, Mesh) else None
    return DeviceMesh(tuple(mesh.axis_sizes), mesh.axis_names, devices, axis_types=types)


def mesh_to_jax(mesh: DeviceMesh, devices: DevicesLike | None = None) -> Mesh | AbstractMesh:
    """A ``Mesh`` of ``devices``, else of the mesh's own devices; an ``AbstractMesh`` if there are none."""
    from jax.sharding import AbstractMesh, AxisType, Mesh

    types: Any = mesh.axis_types and tuple(AxisType[t] for t in mesh.axis_types)
    if devices is not None:
        mesh = DeviceMesh(mesh.shape, mesh.axis_names, devices)
    if mesh.devices is None:
        return AbstractMesh(mesh.shape, mesh.axis_names, axis_types=types)
    return Mesh(mesh.devices, mesh.axis_names, axis_types=types)


def layout_from_sharding(
    sharding: NamedSharding | PartitionSpec, device_mesh: DeviceMesh | None = None
) -> TensorLayout:
    """The layout of a ``NamedSharding``, or of a ``PartitionSpec`` over ``device_mesh`` (or none).

    Memory kinds are not part of a layout. Raises LayoutError for other kinds of sharding and for anything that a
    layout cannot express.
    """
    from jax.sharding import NamedSharding, PartitionSpec

    if isinstance(sharding, NamedSharding):
        return _layout(sharding.spec, mesh_from_jax(sharding.mesh))
    if isinstance(sharding, PartitionSpec):
        return _layout(sharding, device_mesh)
    raise LayoutError(
        f"expected a jax.sharding.NamedSharding or PartitionSpec, found a {type(sharding).__name__}; "
        f"only these name the mesh axes that split a tensor"
    )


def layout_to_spec(layout: TensorLayout) -> PartitionSpec:
    """The layout's axes as a ``PartitionSpec``."""
    from jax.sharding import PartitionSpec

    spec: Any = PartitionSpec  # its constructor is not annotated
    made: PartitionSpec = spec(*layout.axes)
    return made


def layout_to_sharding(layout: TensorLayout, devices: DevicesLike | None = None) -> NamedSharding:
    """A ``NamedSharding`` over ``mesh_to_jax(layout.device_mesh, devices)``."""
    from jax.sharding import NamedSharding

    if layout.device_mesh is None:
        raise LayoutError("a layout without a mesh has no sharding; give it a mesh")
    return NamedSharding(mesh_to_jax(layout.device_mesh, devices), layout_to_spec(layout))


def placed_sharding(layout: TensorLayout) -> NamedSharding:
    """A ``NamedSharding`` over ``placed_mesh``. Raises as that."""
    from jax.sharding import NamedSharding

    return NamedSharding(mesh_to_jax(placed_mesh(layout)), layout_to_spec(layout))


def placed_mesh(layout: TensorLayout) -> DeviceMesh:
    """The mesh of a layout with devices: its own, else all of ``jax.devices()`` in their order.

    Raises LayoutError without a mesh, and if the mesh needs another number of devices.
    """
    mesh = layout.device_mesh
    if mesh is None:
        raise LayoutError(
            f"the layout {show_axes(layout.axes)} has no mesh, and so no devices; give it one with "
            f"layout.with_mesh(mesh)"
        )
    return mesh if mesh.devices is not None else on_all_devices(mesh)


def _layout(spec: PartitionSpec, mesh: DeviceMesh | None) -> TensorLayout:
    _check_sayable(spec)
    axes: tuple[Any, ...] = tuple(spec)
    return TensorLayout(axes, mesh)


def _check_sayable(spec: PartitionSpec) -> None:
    from jax.sharding import PartitionSpec

    for kind in ("unreduced", "reduced"):
        if getattr(spec, kind, None):
            raise LayoutError(
                f"{spec!r} has {kind} axes, whose devices do not have slices of one tensor; reduce it first"
            )
    if any(entry is PartitionSpec.UNCONSTRAINED for entry in spec):
        raise LayoutError(
            f"{spec!r} leaves a dimension unconstrained, so its shards are unknown; name its mesh axes or None"
        )
