"""The sharding of each tensor, from a ``layout`` argument in any of its forms.

A LayoutMap or layout file names tensors by rules. A tree of TensorLayouts or jax shardings names tensors by its
structure; a leaf applies to every tensor below it.
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
from reshard.layout.resolve import layout_for
from reshard.layout.tensor_layout import TensorLayout
from reshard.planning.layout_tree import is_layout_tree, is_struct, leaf_above
from reshard.planning.target_layouts import layout_of, layout_warnings
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


class Shardings(Protocol):
    """The shardings of tensors, by name."""

    def of(self, name: str, shape: tuple[int, ...], dtype: str) -> TensorSharding:
        """The sharding of a tensor; LayoutError, naming it, if the layout cannot split it."""
        ...

    def names(self, name: str, shape: tuple[int, ...], dtype: str) -> bool:
        """Whether the layout names this tensor.

        Raises LayoutError for a tensor without a rule in a layout file that needs one for each.
        """
        ...

    def look_up(self, names: Sequence[str]) -> None:
        """Looks up these names in one pass, for the calls that follow."""
        ...

    def warnings(self, names: Sequence[str]) -> tuple[str, ...]:
        """One sentence for each rule that matches none of these tensors, and for each tensor that several match."""
        ...

    def lacking(self, names: Collection[str]) -> list[str]:
        """Names that it must cover but does not."""
        ...

    def idle(self, names: Collection[str]) -> list[str]:
        """Names in the layout that are not among ``names``, if that is a mistake."""
        ...


def shardings_of(layout: Any) -> tuple[Shardings | None, Changes]:
    """The shardings of a ``layout`` argument, and the changes that a layout file contains.

    None without a layout. LayoutError for anything that is not a layout.
    """
    if layout is None:
        return None, Changes()
    if isinstance(layout, LayoutMap):
        return _FromMap(layout), Changes()
    is_file = (
        isinstance(layout, Mapping) and set(layout) <= set(KEYS) and not is_layout_tree(layout)
    )
    if is_file or isinstance(layout, str | os.PathLike | LayoutFile):
        found = layout_of(layout, None)
        if isinstance(found, LayoutFile):
            return _FromFile(found) if found.has_layout else None, found.changes
    return _FromTree.read(layout), Changes()


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


def _unsplit(sharding: Any) -> Any:
    """On the same devices, but whole: a scalar has no other layout, and jax refuses a spec that names an axis."""
    from jax.sharding import NamedSharding, PartitionSpec

    if isinstance(sharding, TensorLayout):
        return TensorLayout((), sharding.device_mesh)
    if isinstance(sharding, NamedSharding):
        kind = sharding.memory_kind
        return NamedSharding(sharding.mesh, PartitionSpec(), memory_kind=kind)
    return sharding


def _is_sharding(node: Any) -> bool:
    import jax

    return isinstance(node, TensorLayout | jax.sharding.Sharding) or is_struct(node)


class _FromMap(Struct, frozen=True):
    layouts: LayoutMap

    def of(self, name: str, shape: tuple[int, ...], dtype: str) -> TensorSharding:  # noqa: ARG002
        found = self.layouts[name]
        if found is None and self.layouts.device_mesh is None:
            return TensorSharding()
        layout = found or TensorLayout((), self.layouts.device_mesh)
        layout = layout if shape else _unsplit(layout)
        layout.shard_shape(shape, name)
        return TensorSharding(real_sharding(layout, name), found is not None)

    def names(self, name: str, shape: tuple[int, ...], dtype: str) -> bool:  # noqa: ARG002
        return self.layouts[name] is not None

    def look_up(self, names: Sequence[str]) -> None:
        pass  # a map looks up one name at a time

    def warnings(self, names: Sequence[str]) -> tuple[str, ...]:
        return tuple(layout_warnings(self.layouts, names))

    def lacking(self, names: Collection[str]) -> list[str]:  # noqa: ARG002
        return []

    def idle(self, names: Collection[str]) -> list[str]:  # noqa: ARG002
        return []  # a map is often made for several checkpoints


class _FromFile(Struct, frozen=True):
    file: LayoutFile

    def of(self, name: str, shape: tuple[int, ...], dtype: str) -> TensorSharding:
        found = layout_for(self.file, name, shape, dtype)
        if found.partition is not None:
            axis, shards = found.partition["axis"], found.partition["shards"]
            return TensorSharding(is_named=True, rows=(axis, shards))
        if found.layout.device_mesh is None:
            return TensorSharding()
        return TensorSharding(real_sharding(found.layout, name), found.rule_index is not None)

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


class _FromTree(Struct, frozen=True):
    leaves: Mapping[str, Any]

    @classmethod
    def read(cls, layout: Any) -> _FromTree:
        found, _ = named_leaves(layout, "layout", lambda node: node is None or _is_sharding(node))
        leaves = {n: getattr(x, "sharding", None) if is_struct(x) else x for n, x in found.items()}
        wrong = {
            n: leaf for n, leaf in leaves.items() if leaf is not None and not _is_sharding(leaf)
        }
        for name, leaf in wrong.items():
            raise LayoutError(
                f"layout is {leaf!r}{f' at {name!r}' if name else ''}; expected a LayoutMap, the path or content of a "
                "layout file, or a tree of TensorLayouts, jax shardings or jax.ShapeDtypeStructs"
            )
        return cls(leaves)

    def of(self, name: str, shape: tuple[int, ...], dtype: str) -> TensorSharding:  # noqa: ARG002
        key = self._key(name)
        found = None if key is None else self.leaves[key]
        found = found if shape else _unsplit(found)
        if isinstance(found, TensorLayout) and found.device_mesh is not None:
            found.shard_shape(shape, name)
        return TensorSharding(
            None if found is None else real_sharding(found, name), found is not None
        )

    def names(self, name: str, shape: tuple[int, ...], dtype: str) -> bool:  # noqa: ARG002
        key = self._key(name)
        return (
            key is None or self.leaves[key] is not None
        )  # ``lacking`` reports a name without a key

    def look_up(self, names: Sequence[str]) -> None:
        pass  # a tree has no patterns

    def warnings(self, names: Sequence[str]) -> tuple[str, ...]:  # noqa: ARG002
        return ()  # ``idle`` reports them as errors

    def lacking(self, names: Collection[str]) -> list[str]:
        return [name for name in names if self._key(name) is None]

    def idle(self, names: Collection[str]) -> list[str]:
        used = {self._key(name) for name in names}
        return [key for key in self.leaves if key not in used]

    def _key(self, name: str) -> str | None:
        return leaf_above(name, self.leaves)
