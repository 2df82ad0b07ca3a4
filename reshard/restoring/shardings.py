"""The sharding of each tensor, from a ``layout`` argument in any of its forms.

A LayoutMap or layout file names tensors by rules; a tree of TensorLayouts or jax shardings names them
by its structure, of which a leaf stands for everything below it.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from msgspec import Struct

from reshard.errors import LayoutError
from reshard.formats.live_trees import named_leaves
from reshard.layout.bridges.jax_sharding import mesh_from_jax, mesh_to_jax
from reshard.layout.changes import Changes
from reshard.layout.devices import on_all_devices
from reshard.layout.layout_file import KEYS, LayoutFile
from reshard.layout.layout_map import LayoutMap
from reshard.layout.mesh import TensorLayout
from reshard.layout.resolve import layout_for
from reshard.planning.layout_tree import is_layout_tree, is_struct, leaf_above
from reshard.planning.target_layouts import layout_of, layout_warnings
from reshard.variables.distribute import on_devices

if TYPE_CHECKING:
    import jax


class Spot(Struct, frozen=True):
    """Where one tensor goes.

    Attributes:
        sharding: None where nothing was said, so that jax's default device holds it.
        is_named: whether the layout means this tensor, rather than all that it does not name.
        rows: axis and number of shards, where a layout file partitions it.
    """

    sharding: jax.sharding.Sharding | None = None
    is_named: bool = False
    rows: tuple[int, int] | None = None


class Placement(Protocol):
    """Where tensors go, by name."""

    def spot(self, name: str, shape: tuple[int, ...], dtype: str) -> Spot:
        """Raises LayoutError, naming the tensor, where the layout cannot split it."""
        ...

    def names(self, name: str, shape: tuple[int, ...], dtype: str) -> bool:
        """Whether the layout means this tensor, rather than all that it does not name.

        Raises LayoutError where it must name every tensor.
        """
        ...

    def look_up(self, names: Sequence[str]) -> None:
        """Look these names up at once; it is asked about them next."""
        ...

    def warnings(self, names: Sequence[str]) -> tuple[str, ...]:
        """What it says of none of these tensors, or twice of one; one sentence each."""
        ...

    def lacking(self, names: Collection[str]) -> list[str]:
        """Names of which it should say something, but does not."""
        ...

    def idle(self, names: Collection[str]) -> list[str]:
        """What it names that is not among ``names``, where that is a mistake."""
        ...


def placement_of(layout: Any) -> tuple[Placement | None, Changes]:
    """The Placement that a ``layout`` argument stands for, and the changes that a layout file makes.

    None where nothing is said of where tensors go. LayoutError for what is no layout.
    """
    if layout is None:
        return None, Changes()
    if isinstance(layout, LayoutMap):
        return _ByMap(layout), Changes()
    is_file = (
        isinstance(layout, Mapping) and set(layout) <= set(KEYS) and not is_layout_tree(layout)
    )
    if is_file or isinstance(layout, str | os.PathLike | LayoutFile):
        found = layout_of(layout, None)
        if isinstance(found, LayoutFile):
            return _ByFile(found) if found.has_layout else None, found.changes
    return _ByTree.of(layout), Changes()


def real_sharding(sharding: Any, name: str) -> jax.sharding.Sharding:
    """A sharding over devices: a mesh without any takes all of jax's in order.

    Raises LayoutError, naming the tensor, where there are more or fewer devices than places.
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


def _is_spot(node: Any) -> bool:
    import jax

    return isinstance(node, TensorLayout | jax.sharding.Sharding) or is_struct(node)


class _ByMap(Struct, frozen=True):
    layouts: LayoutMap

    def spot(self, name: str, shape: tuple[int, ...], dtype: str) -> Spot:  # noqa: ARG002
        found = self.layouts[name]
        if found is None and self.layouts.device_mesh is None:
            return Spot()
        layout = found or TensorLayout((), self.layouts.device_mesh)
        layout.shard_shape(shape, name)
        return Spot(real_sharding(layout, name), found is not None)

    def names(self, name: str, shape: tuple[int, ...], dtype: str) -> bool:  # noqa: ARG002
        return self.layouts[name] is not None

    def look_up(self, names: Sequence[str]) -> None:
        pass  # Each name is looked up when it is asked about.

    def warnings(self, names: Sequence[str]) -> tuple[str, ...]:
        return tuple(layout_warnings(self.layouts, names))

    def lacking(self, names: Collection[str]) -> list[str]:  # noqa: ARG002
        return []

    def idle(self, names: Collection[str]) -> list[str]:  # noqa: ARG002
        return []  # A map is often made for more than one checkpoint.


class _ByFile(Struct, frozen=True):
    file: LayoutFile

    def spot(self, name: str, shape: tuple[int, ...], dtype: str) -> Spot:
        found = layout_for(self.file, name, shape, dtype)
        if found.partition is not None:
            axis, shards = found.partition["axis"], found.partition["shards"]
            return Spot(is_named=True, rows=(axis, shards))
        if found.layout.device_mesh is None:
            return Spot()
        return Spot(real_sharding(found.layout, name), found.rule_index is not None)

    def names(self, name: str, shape: tuple[int, ...], dtype: str) -> bool:
        found = layout_for(self.file, name, shape, dtype)
        return found.partition is not None or found.rule_index is not None

    def look_up(self, names: Sequence[str]) -> None:
        self.file.found.learn(names)

    def warnings(self, names: Sequence[str]) -> tuple[str, ...]:
        return tuple(layout_warnings(self.file, names))

    def lacking(self, names: Collection[str]) -> list[str]:  # noqa: ARG002
        return []

    def idle(self, names: Collection[str]) -> list[str]:  # noqa: ARG002
        return []


class _ByTree(Struct, frozen=True):
    leaves: Mapping[str, Any]

    @classmethod
    def of(cls, layout: Any) -> _ByTree:
        found, _ = named_leaves(layout, "layout", lambda node: node is None or _is_spot(node))
        leaves = {n: getattr(x, "sharding", None) if is_struct(x) else x for n, x in found.items()}
        wrong = {n: leaf for n, leaf in leaves.items() if leaf is not None and not _is_spot(leaf)}
        for name, leaf in wrong.items():
            raise LayoutError(
                f"layout is {leaf!r}{f' at {name!r}' if name else ''}; expected a LayoutMap, the path or content of a "
                "layout file, or a tree of TensorLayouts, jax shardings or jax.ShapeDtypeStructs"
            )
        return cls(leaves)

    def spot(self, name: str, shape: tuple[int, ...], dtype: str) -> Spot:  # noqa: ARG002
        key = self._key(name)
        found = None if key is None else self.leaves[key]
        if isinstance(found, TensorLayout) and found.device_mesh is not None:
            found.shard_shape(shape, name)
        return Spot(None if found is None else real_sharding(found, name), found is not None)

    def names(self, name: str, shape: tuple[int, ...], dtype: str) -> bool:  # noqa: ARG002
        key = self._key(name)
        return key is None or self.leaves[key] is not None  # it should, and ``lacking`` says so

    def look_up(self, names: Sequence[str]) -> None:
        pass  # It has no patterns.

    def warnings(self, names: Sequence[str]) -> tuple[str, ...]:  # noqa: ARG002
        return ()  # What it names in vain is an error.

    def lacking(self, names: Collection[str]) -> list[str]:
        return [name for name in names if self._key(name) is None]

    def idle(self, names: Collection[str]) -> list[str]:
        used = {self._key(name) for name in names}
        return [key for key in self.leaves if key not in used]

    def _key(self, name: str) -> str | None:
        return leaf_above(name, self.leaves)
