"""Gives every object below a root a path, such as ``blk.lst.0.kernel``, and each path its layout and its sharding.

A path joins names of attributes (also of dataclasses and ``__slots__``), indices of lists and tuples, keys
of mappings and fields of named tuples; sets have no order and are skipped. The search runs depth first,
in the order in which attributes were set, and an object with several paths keeps the first. Properties are
not read: they may compute anything.
"""

from __future__ import annotations

import sys
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import suppress
from types import BuiltinFunctionType, FunctionType, MemberDescriptorType, MethodType, ModuleType
from typing import TYPE_CHECKING, Any

from reshard.errors import LayoutError, VariableError
from reshard.layout.bridges.jax_sharding import placed_mesh
from reshard.layout.device_mesh import DeviceMesh, same_axes
from reshard.layout.layout_map import LayoutMap
from reshard.layout.tensor_layout import TensorLayout

if TYPE_CHECKING:
    from jax.sharding import NamedSharding


CACHED_ATTRIBUTES = frozenset(
    {
        "_self_tracked_trackables",
        "_trainable_weights",
        "_non_trainable_weights",
        "_captured_weight_regularizer",
    }
)
"""Attributes that only repeat objects of others, as in the Keras of dtensor."""

Children = Iterator[tuple[str, object]]

_PLAIN = (
    str, bytes, bytearray, memoryview, int, float, complex, bool, type(None), type, ModuleType,
    FunctionType, BuiltinFunctionType, MethodType, *weakref.ProxyTypes,
)  # fmt: skip


def object_paths(
    root: object,
    is_leaf: Callable[[object], bool],
    children: Callable[[object], Children | None] = lambda _: None,
) -> dict[str, Any]:
    """Every leaf below ``root`` by its dot-joined path; the root itself has the path ``""``.

    Args:
        root: the object at which paths start.
        is_leaf: true for an object to collect.
        children: the named children of an object that needs special treatment; None for any other.

    Raises VariableError if two leaves have the same path, as in ``{"a.b": x, "a": {"b": y}}``.
    """
    found: dict[str, Any] = {}
    seen: dict[int, object] = {}  # a reference to each object, so that no id is used again
    stack: list[tuple[str, object]] = [("", root)]
    while stack:
        path, node = stack.pop()
        if _is_plain(node) or id(node) in seen:
            continue
        seen[id(node)] = node
        if is_leaf(node):
            _add(found, path, node)
            continue
        below = children(node)
        every = _children(node) if below is None else below
        named = [(name, child) for name, child in every if not _is_plain(child)]
        stack.extend((f"{path}.{name}" if path else name, child) for name, child in reversed(named))
    return found


def _is_plain(node: object) -> bool:
    return issubclass(type(node), _PLAIN)  # isinstance would look through a weak proxy


def _add(found: dict[str, Any], path: str, leaf: object) -> None:
    if path in found:
        raise VariableError(
            f"two variables have the path {path!r}, so a layout map cannot tell them apart; rename a "
            f"key or an attribute that has a dot in it"
        )
    found[path] = leaf


def _children(node: object) -> Children:
    if isinstance(node, Mapping):
        return ((str(key), value) for key, value in node.items())
    if isinstance(node, tuple) and hasattr(node, "_fields"):
        return zip(node._fields, node, strict=True)
    if isinstance(node, list | tuple | deque):
        return ((str(index), value) for index, value in enumerate(node))
    return iter(()) if isinstance(node, Set) or _is_array(node) else attributes(node)


def attributes(node: object) -> Children:
    """The attributes in an instance's slots and ``__dict__``, without the cached ones."""
    for name, slot in _slots(type(node)):
        with suppress(AttributeError):  # a slot that was never set
            yield name, slot.__get__(node)
    with suppress(AttributeError):  # an object with slots only
        for name, value in list(object.__getattribute__(node, "__dict__").items()):
            if name not in CACHED_ATTRIBUTES:
                yield name, value


def _slots(kind: type) -> Iterator[tuple[str, Any]]:
    for base in reversed(kind.__mro__):
        slots = vars(base).get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else tuple(slots):
            hidden = name.startswith("__") and not name.endswith("__")
            slot = vars(base).get(f"_{base.__name__.lstrip('_')}{name}" if hidden else name)
            if isinstance(slot, MemberDescriptorType) and name not in CACHED_ATTRIBUTES:
                yield name, slot


def _is_array(node: object) -> bool:
    jax = sys.modules.get("jax")
    # The type is asked: looking up an attribute of the object may compute something.
    return hasattr(type(node), "__array_interface__") or (
        jax is not None and isinstance(node, jax.Array)
    )


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
        placed = placed_mesh(layout)
        wanted = None if default is None else placed_mesh(TensorLayout((), default))
    except LayoutError as error:
        raise LayoutError(f"{path!r} cannot get its value: {error}") from None
    if wanted is not None:
        _check_same_devices(placed, wanted, path)
    return layout if placed is layout.device_mesh else TensorLayout(layout.axes, placed)


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
