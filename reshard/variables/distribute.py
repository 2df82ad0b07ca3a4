"""distribute_tensor: lays a tensor out over the devices of a mesh, eagerly or under tracing."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from reshard.errors import LayoutError, VariableError, VariableTypeError
from reshard.layout.bridges.from_keras import own_layout
from reshard.layout.bridges.jax_sharding import layout_from_sharding, mesh_from_jax, placed_sharding
from reshard.layout.device_mesh import DeviceMesh, same_axes
from reshard.layout.tensor_layout import TensorLayout

if TYPE_CHECKING:
    import jax
    from jax.sharding import NamedSharding, Sharding


def distribute_tensor(tensor: Any, layout: TensorLayout | Sharding) -> jax.Array:
    """Lays out a tensor over devices; the values stay the same.

    Args:
        tensor: a jax or numpy array, a number, a variable of Keras or flax, or a tracer under
            ``jax.jit``.
        layout: a TensorLayout (also one of Keras), or a jax Sharding. A mesh without devices uses all of ``jax.devices()`` in their order.

    Returns:
        ``tensor`` itself if it has this layout already, else a new array. If processes share the mesh, each passes the
        whole value and copies only the shards of its own devices. A symbolic ``keras.KerasTensor`` is returned
        unchanged: it has no values to lay out.

    Under tracing this constrains the sharding, and dimensions may be split unevenly. Eagerly it raises
    LayoutError for a dimension that its mesh axes do not divide, for more axes than dimensions,
    and for a mesh whose size is not the number of ``jax.devices()``. Raises VariableTypeError if ``tensor``
    is not an array or ``layout`` not a layout, VariableError for an array that was donated or deleted.

    >>> distribute_tensor([1, 2], TensorLayout((None,), DeviceMesh((1,), ("x",))))
    Traceback (most recent call last):
    reshard.errors.VariableTypeError: expected an array to distribute, found a list: [1, 2]; ...
    """
    import jax

    if _is_symbolic(tensor):
        return tensor  # type: ignore[no-any-return]  # a symbolic tensor of Keras
    array = _array(tensor)
    if isinstance(array, jax.core.Tracer):
        return _constrain(array, _sharding(layout, traced=True))
    if isinstance(array, jax.Array) and array.is_deleted():
        raise VariableError(
            f"the array of shape {list(array.shape)} to distribute was deleted, or donated to a "
            f"jitted function; use the array that the function returned"
        )
    return _place(array, _sharding(layout, traced=False))


def _is_symbolic(tensor: object) -> bool:
    keras = sys.modules.get("keras")
    symbolic = getattr(keras, "KerasTensor", None)
    return symbolic is not None and isinstance(tensor, symbolic)


def _array(tensor: Any) -> Any:
    import jax
    import numpy as np

    if isinstance(tensor, jax.Array | np.ndarray | np.generic | bool | int | float | complex):
        return tensor
    if hasattr(tensor, "__jax_array__"):
        return tensor.__jax_array__()
    raise VariableTypeError(
        f"expected an array to distribute, found a {type(tensor).__name__}: {tensor!r:.80}; make it an "
        f"array, or map over a tree's leaves with jax.tree.map"
    )


def _sharding(layout: TensorLayout | Sharding, *, traced: bool) -> Sharding:
    from jax.sharding import AbstractMesh, NamedSharding, Sharding

    layout = own_layout(layout)
    if isinstance(layout, NamedSharding) and isinstance(layout.mesh, AbstractMesh):
        placed = _named(layout_from_sharding(layout), traced=traced)
        return placed.with_memory_kind(layout.memory_kind) if layout.memory_kind else placed
    if isinstance(layout, Sharding):
        return layout
    if isinstance(layout, TensorLayout):
        return _named(layout, traced=traced)
    raise VariableTypeError(
        f"expected a reshard.TensorLayout or a jax.sharding.Sharding to distribute a tensor by, "
        f"found a {type(layout).__name__}: {layout!r:.80}; TensorLayout(axes, device_mesh) makes one"
    )


def _named(layout: TensorLayout, *, traced: bool) -> NamedSharding:
    mesh = layout.device_mesh
    if traced and mesh is not None and mesh.devices is None and _is_current(mesh):
        return layout.backend_layout  # jax.set_mesh gives the devices
    return placed_sharding(layout)


def _is_current(mesh: DeviceMesh) -> bool:
    import jax

    current = jax.sharding.get_abstract_mesh()
    return not current.empty and same_axes(mesh_from_jax(current), mesh)


def _constrain(array: Any, sharding: Sharding) -> jax.Array:
    import jax

    constrain: Any = jax.lax.with_sharding_constraint
    if isinstance(sharding, jax.sharding.NamedSharding):
        _check_rank(array.ndim, sharding)
        if sharding.mesh.are_all_axes_explicit:
            constrain = jax.sharding.reshard  # explicit shardings are part of the traced types
    try:
        constrained: jax.Array = constrain(array, sharding)
    except ValueError as error:
        raise LayoutError(
            f"a traced tensor of shape {list(array.shape)} cannot be laid out as {sharding}: {error}"
        ) from None
    return constrained


def _check_rank(rank: int, sharding: NamedSharding) -> None:
    if len(sharding.spec) > rank:
        raise LayoutError(
            f"a traced tensor has {rank} dimensions, but its layout {sharding.spec} has more axes than "
            f"dimensions: {len(sharding.spec)}; remove the surplus ones"
        )


def _place(array: Any, sharding: Sharding) -> jax.Array:
    import jax
    import numpy as np

    shape = np.shape(array)
    _check_divides(shape, sharding)
    if isinstance(array, jax.Array) and array.sharding.is_equivalent_to(sharding, len(shape)):
        return array
    if not sharding.is_fully_addressable and getattr(array, "is_fully_addressable", True):
        return _place_own_part(array, sharding)
    try:
        placed: jax.Array = jax.device_put(array, sharding)
    except (TypeError, OverflowError, ValueError) as error:
        raise VariableTypeError(
            f"expected an array that jax can hold, found {array!r:.80}: {error}"
        ) from None
    return placed


def _place_own_part(array: Any, sharding: Sharding) -> jax.Array:
    """Copies this process's shards only; ``device_put`` would compare the value between all processes."""
    import jax
    import numpy as np

    host = np.asarray(array)
    host = host.astype(jax.dtypes.canonicalize_dtype(host.dtype), copy=False)
    return jax.make_array_from_callback(host.shape, sharding, lambda box: host[box])


def _check_divides(shape: tuple[int, ...], sharding: Sharding) -> None:
    from jax.sharding import NamedSharding

    if isinstance(sharding, NamedSharding):
        abstract = NamedSharding(sharding.mesh.abstract_mesh, sharding.spec)
        layout_from_sharding(abstract).shard_shape(shape, "tensor")
        return
    try:
        sharding.shard_shape(shape)
    except ValueError as error:
        raise LayoutError(
            f"a tensor of shape {list(shape)} cannot be laid out as {sharding}: {error}"
        ) from None
