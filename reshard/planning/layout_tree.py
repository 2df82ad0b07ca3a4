"""LayoutTree: layouts given as a tree; a leaf applies to everything below it."""

from __future__ import annotations

import os
import sys
from collections.abc import Collection, Mapping
from typing import Any

from msgspec import Struct

from reshard.errors import LayoutError, MissingPackageError
from reshard.formats.limits import MAX_PATH_KEYS
from reshard.layout.axes import known_axes, show_axes, used_axes
from reshard.layout.bridges.from_keras import is_from_keras, own_layout
from reshard.layout.bridges.jax_sharding import is_from_jax, layout_from_sharding
from reshard.layout.device_mesh import DeviceMesh
from reshard.layout.layout_file import LayoutFile
from reshard.layout.layout_map import LayoutMap
from reshard.layout.tensor_layout import TensorLayout
from reshard.layout.tensor_spec import TensorSpec
from reshard.version import how_to_install

_PRNG = "key<"
"""Start of the dtype of PRNG keys; their data has one more dimension than the keys."""


class LayoutLeaf(Struct, frozen=True):
    """The layout, shape and dtype that one leaf gives.

    Attributes:
        layout: None if the leaf gives none; the tensor is then whole on one device.
        shape, dtype: those of the leaf, if it is a struct or an array.
    """

    layout: TensorLayout | None
    shape: tuple[int, ...] | None = None
    dtype: str | None = None


class LayoutTree(Struct, frozen=True):
    """Layouts by name; ``replicated`` are the axes that the leaves name and the given mesh lacks."""

    leaves: Mapping[str, LayoutLeaf]
    replicated: tuple[str, ...] = ()

    def layout(self, target: TensorSpec) -> TensorLayout | None:
        """The layout of a tensor.

        Raises LayoutError if the tree has no leaf for it, or one with another shape or dtype.
        """
        key = leaf_above(target.name, self.leaves)
        if key is None:
            raise LayoutError(
                f"the tree of layouts says nothing of {target.name!r}; add a leaf for this tensor or for "
                f"one of its parents (the leaf None records no layout)"
            )
        leaf = self.leaves[key]
        if key == target.name:
            _check_same(leaf, target)
        return leaf.layout

    def idle(self, names: Collection[str]) -> list[str]:
        """The leaves with a layout that apply to none of these tensors."""
        used = {leaf_above(name, self.leaves) for name in names}
        return [key for key, leaf in self.leaves.items() if leaf.layout and key not in used]

    @property
    def text(self) -> str:
        """The tree as text, equal for equal trees."""
        shown = {name: leaf.layout for name, leaf in sorted(self.leaves.items())}
        lines = [
            f"{n!r}: {show_axes(x.axes) if x else None} over {_mesh(x)}" for n, x in shown.items()
        ]
        return f"a tree: {'; '.join(lines)}"


def leaf_above(name: str, leaves: Collection[str]) -> str | None:
    """The leaf that applies to a tensor: its own, or the nearest above it."""
    while name not in leaves:
        if not name:
            return None
        name = name.rpartition("/")[0]
    return name


def is_layout_tree(layout: object, depth: int = 0) -> bool:
    """True if it is a tree with layouts, shardings, structs or arrays of jax in it, or one of these."""
    if isinstance(layout, str | os.PathLike | LayoutFile | LayoutMap) or depth > MAX_PATH_KEYS:
        return False
    if is_place(layout):
        return True
    if isinstance(layout, dict | list | tuple):
        inner = layout.values() if isinstance(layout, dict) else layout
        return any(is_layout_tree(node, depth + 1) for node in inner)
    jax = sys.modules.get("jax")
    return jax is not None and any(
        map(is_place, jax.tree_util.tree_leaves(layout, is_leaf=is_place))
    )


def is_place(node: object) -> bool:
    """True if it places one tensor, or may do so: a layout, sharding, spec, struct or array."""
    return (
        isinstance(node, TensorLayout)
        or is_from_keras(node, "TensorLayout")
        or is_from_jax(node, "Sharding", "PartitionSpec")
        or is_struct(node)
    )


def is_struct(node: object) -> bool:
    """True if it is a ``jax.ShapeDtypeStruct`` or a jax array."""
    jax = sys.modules.get("jax")
    return jax is not None and isinstance(node, jax.ShapeDtypeStruct | jax.Array)


def layout_tree(tree: Any, mesh: DeviceMesh | None, missing_axes: str) -> LayoutTree:
    """The leaves of the tree by name; ``mesh`` is for its PartitionSpecs and for layouts without a mesh.

    Raises LayoutError naming the leaves that have no layout, TreeError if ``tree`` is not a tree.
    """
    try:
        from reshard.formats.live_trees import named_leaves

        found, _ = named_leaves(tree, "layout", lambda node: node is None or is_place(node))
    except ImportError as error:
        raise MissingPackageError(
            f"a tree of layouts is opened by jax, which is not installed; {how_to_install('jax')}, or "
            f"give a layout file or a LayoutMap"
        ) from error
    leaves: dict[str, LayoutLeaf] = {}
    lacking: dict[str, None] = {}
    for name, leaf in found.items():
        try:
            leaves[name] = _leaf(leaf, mesh, missing_axes, lacking)
        except LayoutError as error:
            raise LayoutError(f"the layout of {name!r}: {error}" if name else str(error)) from None
    return LayoutTree(leaves, tuple(lacking))


def _leaf(
    leaf: Any, mesh: DeviceMesh | None, missing_axes: str, lacking: dict[str, None]
) -> LayoutLeaf:
    if is_struct(leaf):
        sharding = getattr(leaf, "sharding", None)
        layout = None if sharding is None else _layout(sharding, mesh, missing_axes, lacking)
        return LayoutLeaf(layout, tuple(leaf.shape), str(leaf.dtype))
    if is_place(leaf):
        return LayoutLeaf(_layout(leaf, mesh, missing_axes, lacking))
    if (
        leaf is None
        or isinstance(leaf, str | bool | int | float | complex)
        or hasattr(leaf, "__array__")
    ):
        return LayoutLeaf(None)
    raise LayoutError(
        f"expected a TensorLayout, a jax sharding, a PartitionSpec, a jax.ShapeDtypeStruct, an array or None, "
        f"found {leaf!r:.80}"
    )


def _layout(
    place: Any, mesh: DeviceMesh | None, missing_axes: str, lacking: dict[str, None]
) -> TensorLayout:
    if is_from_jax(place, "SingleDeviceSharding"):
        return TensorLayout((), DeviceMesh((1,), ("device",), list(place.device_set)).recorded)
    return layout_over(place, mesh, missing_axes, lacking).recorded


def layout_over(
    place: Any, mesh: DeviceMesh | None, missing_axes: str, lacking: dict[str, None]
) -> TensorLayout:
    """The layout of a leaf that names axes, over its own mesh or the given one.

    Adds to ``lacking`` the axes that are replicated because the given mesh lacks them. Raises LayoutError for a leaf with two
    meshes, or with none.
    """
    place = own_layout(place)
    found = place if isinstance(place, TensorLayout) else layout_from_sharding(place)
    if found.device_mesh is not None:
        if mesh is not None:
            raise LayoutError(f"it has {found.device_mesh} of its own; leave 'mesh' out")
        return found
    if mesh is None:
        raise LayoutError(
            f"{show_axes(found.axes)} has no mesh; give one (mesh), or a NamedSharding"
        )
    if missing_axes == "replicate":
        lacking |= dict.fromkeys(a for a in used_axes(found.axes) if a not in mesh.axis_names)
        return TensorLayout(known_axes(found.axes, mesh.axis_names), mesh)
    return TensorLayout(found.axes, mesh)


def _check_same(leaf: LayoutLeaf, target: TensorSpec) -> None:
    if leaf.shape is None or leaf.dtype is None:
        return
    is_key = leaf.dtype.startswith(_PRNG)
    shape = target.shape[:-1] if is_key else target.shape
    if leaf.shape != shape:
        raise LayoutError(
            f"{target.name!r} has shape {list(shape)}, but {list(leaf.shape)} in the tree of layouts"
        )
    if not is_key and leaf.dtype != target.dtype:
        raise LayoutError(
            f"{target.name!r} is {target.dtype}, but {leaf.dtype} in the tree of layouts; cast it "
            f"({target.name}={leaf.dtype}), or give its sharding alone"
        )


def _mesh(layout: TensorLayout | None) -> str:
    mesh = layout and layout.device_mesh
    return f"{mesh} {mesh.axis_types} {mesh.device_ids}" if mesh else "no mesh"
