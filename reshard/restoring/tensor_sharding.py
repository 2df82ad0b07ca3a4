"""TensorSharding: the sharding of one tensor, over devices, checked against its shape."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec import Struct

from reshard.errors import LayoutError
from reshard.layout.axes import Axis
from reshard.layout.bridges.jax_sharding import mesh_from_jax, mesh_to_jax
from reshard.layout.devices import on_all_devices
from reshard.layout.tensor_layout import TensorLayout
from reshard.variables.distribute import on_devices

if TYPE_CHECKING:
    import jax


class TensorSharding(Struct, frozen=True):
    """The sharding that a layout gives one tensor.

    Attributes:
        sharding: None for jax's default device.
        is_named: whether the layout names this tensor; False for its default.
        rows: axis and number of shards, if a layout file partitions the tensor.
    """

    sharding: jax.sharding.Sharding | None = None
    is_named: bool = False
    rows: tuple[int, int] | None = None


class ToShard(Struct, frozen=True):
    """A tensor to be restored.

    Attributes:
        shape: that of the keys, for PRNG keys.
        recorded: the axes that split it when it was saved; None if none are recorded.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    recorded: tuple[Axis, ...] | None = None


def checked_sharding(layout: TensorLayout, tensor: ToShard) -> jax.sharding.Sharding:
    """The sharding of a tensor that has this layout; LayoutError, naming it, if it does not split it evenly."""
    layout = layout if tensor.shape else unsplit(layout)
    layout.shard_shape(tensor.shape, tensor.name)
    return real_sharding(layout, tensor.name)


def real_sharding(sharding: Any, name: str) -> jax.sharding.Sharding:
    """The sharding over devices; a mesh without devices uses all of jax's, in order.

    Raises LayoutError, naming the tensor, if the mesh needs more or fewer devices than there are.
    """
    try:
        return _real(sharding)
    except LayoutError as error:
        raise LayoutError(f"{name!r}: {error}") from None


def _real(sharding: Any) -> jax.sharding.Sharding:
    from jax.sharding import AbstractMesh, NamedSharding

    if isinstance(sharding, TensorLayout):
        return on_devices(sharding).backend_layout
    found: jax.sharding.Sharding = sharding
    if isinstance(sharding, NamedSharding) and isinstance(sharding.mesh, AbstractMesh):
        mesh = mesh_from_jax(sharding.mesh)
        placed = mesh_to_jax(mesh, on_all_devices(mesh.shape, str(mesh)))
        found = NamedSharding(placed, sharding.spec, memory_kind=sharding.memory_kind)
    return found


def unsplit(sharding: Any) -> Any:
    """On the same devices, but whole: a scalar has no other layout, and jax refuses a spec that names an axis."""
    from jax.sharding import NamedSharding, PartitionSpec

    if isinstance(sharding, TensorLayout):
        return TensorLayout((), sharding.device_mesh)
    if isinstance(sharding, NamedSharding):
        kind = sharding.memory_kind
        return NamedSharding(sharding.mesh, PartitionSpec(), memory_kind=kind)
    return sharding
