"""The sharding of each tensor, from a ``layout`` argument in any of its forms, checked against its shape.

A LayoutMap or layout file names tensors by rules. A tree of TensorLayouts or jax shardings names tensors by its
structure; a leaf applies to every tensor below it. A mesh alone keeps the axes that the checkpoint records.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from msgspec import Struct

from reshard.errors import LayoutError
from reshard.formats.leaf_paths import named_leaves
from reshard.layout.axes import Axis
from reshard.layout.bridges.from_keras import own_layout
from reshard.layout.bridges.jax_sharding import (
    is_from_jax,
    mesh_from_jax,
    mesh_to_jax,
    placed_sharding,
)
from reshard.layout.changes import Changes
from reshard.layout.device_mesh import DeviceMesh, MeshLike, on_all_devices
from reshard.layout.layout_file import KEYS, LayoutFile, MissingAxes, layout_for
from reshard.layout.layout_map import LayoutMap
from reshard.layout.read_layout import given_layout
from reshard.layout.tensor_layout import TensorLayout
from reshard.layout.tensor_spec import TensorSpec
from reshard.planning.target_layouts import (
    SameAxes,
    check_missing_axes,
    is_layout_tree,
    is_place,
    is_struct,
    layout_of,
    layout_over,
    layout_warnings,
    leaf_above,
    mesh_of,
    over_mesh,
    replicated_warnings,
)

if TYPE_CHECKING:
    import jax


class Shardings(Protocol):
    """The shardings of tensors, by name."""

    def of(self, tensor: ToShard, /) -> TensorSharding:
        """The sharding of a tensor; LayoutError, naming it, if the layout cannot split it."""
        ...

    def names(self, tensor: ToShard, /) -> bool:
        """True if the layout names this tensor.

        Raises LayoutError for a tensor without a rule in a layout file that needs one for each.
        """
        ...

    def look_up(self, names: Sequence[str], /) -> None:
        """Looks up these names in one pass, for the calls that follow."""
        ...

    def warnings(self, names: Sequence[str], sources: Sequence[TensorSpec], /) -> tuple[str, ...]:
        """One sentence for each rule that matches none of these tensors, for each tensor that several match, and for axes
        that are replicated. ``sources`` are the stored tensors."""
        ...

    def lacking(self, names: Collection[str], /) -> list[str]:
        """Names that it must cover but does not."""
        ...

    def idle(self, names: Collection[str], /) -> list[str]:
        """Names in the layout that are not among ``names``, if that is a mistake."""
        ...


def shardings_of(
    layout: Any, mesh: str | MeshLike | None, missing_axes: MissingAxes
) -> tuple[Shardings | None, Changes]:
    """The shardings of the ``layout`` and ``mesh`` arguments, and the changes that a layout file contains.

    None without a layout and a mesh. LayoutError for anything that is not a layout or a mesh.
    """
    if mesh is None and isinstance(layout, LayoutMap | None):
        check_missing_axes(missing_axes)
        return None if layout is None else _FromMap(layout), Changes()
    layout = own_layout(layout)
    if not _is_file_or_map(layout):
        check_missing_axes(missing_axes)
        return _FromTree.read(layout, mesh_of(mesh), missing_axes), Changes()
    found = layout_of(given_layout(layout), mesh, missing_axes, keeps_devices=True)
    if isinstance(found, LayoutFile):
        return _FromFile(found) if found.has_layout else None, found.changes
    if isinstance(found, SameAxes):
        return _FromSource(found), Changes()
    return _FromMap(found) if isinstance(found, LayoutMap) else None, Changes()


def _is_file_or_map(layout: Any) -> bool:
    if isinstance(layout, Mapping) and not isinstance(layout, LayoutMap):
        return set(layout) <= set(KEYS) and not is_layout_tree(layout)
    return layout is None or isinstance(layout, str | os.PathLike | LayoutFile | LayoutMap)


class _FromRules(Struct, frozen=True):
    """A layout that need not name every tensor, and may name others: it is often made for several checkpoints."""

    layout: LayoutMap | LayoutFile | SameAxes

    def look_up(self, names: Sequence[str], /) -> None:
        """Looks names up together, where a layout has patterns for it."""

    def warnings(self, names: Sequence[str], sources: Sequence[TensorSpec], /) -> tuple[str, ...]:
        return tuple(layout_warnings(self.layout, names, sources))

    def lacking(self, _names: Collection[str], /) -> list[str]:
        return []

    def idle(self, _names: Collection[str], /) -> list[str]:
        return []


class _FromMap(_FromRules, frozen=True):
    layout: LayoutMap

    def of(self, tensor: ToShard, /) -> TensorSharding:
        found, mesh = self.layout[tensor.name], self.layout.device_mesh
        if found is None and mesh is None:
            return TensorSharding()
        layout = found or TensorLayout((), mesh)
        return TensorSharding(checked_sharding(layout, tensor), found is not None)

    def names(self, tensor: ToShard, /) -> bool:
        return self.layout[tensor.name] is not None


class _FromFile(_FromRules, frozen=True):
    layout: LayoutFile

    def of(self, tensor: ToShard, /) -> TensorSharding:
        found = layout_for(self.layout, tensor.name, tensor.shape, tensor.dtype)
        if found.partition is not None:
            axis, shards = found.partition["axis"], found.partition["shards"]
            return TensorSharding(is_named=True, rows=(axis, shards))
        if found.layout.device_mesh is None:
            return TensorSharding()
        return TensorSharding(
            real_sharding(found.layout, tensor.name), found.rule_index is not None
        )

    def names(self, tensor: ToShard, /) -> bool:
        found = layout_for(self.layout, tensor.name, tensor.shape, tensor.dtype)
        return found.partition is not None or found.rule_index is not None

    def look_up(self, names: Sequence[str], /) -> None:
        self.layout.found.learn(names)


class _FromSource(_FromRules, frozen=True):
    """The axes that the checkpoint records, over another mesh; tensors without recorded axes are replicated."""

    layout: SameAxes

    def of(self, tensor: ToShard, /) -> TensorSharding:
        axes = (tensor.recorded or ())[: len(tensor.shape)]  # data of PRNG keys has one more
        layout = over_mesh(tensor.name, axes, self.layout)
        return TensorSharding(checked_sharding(layout, tensor), self.names(tensor))

    def names(self, tensor: ToShard, /) -> bool:
        return tensor.recorded is not None


class _FromTree(Struct, frozen=True):
    """Shardings by name; ``replicated`` are the axes that leaves name and the given mesh lacks."""

    leaves: Mapping[str, TensorLayout | jax.sharding.Sharding | None]
    mesh: DeviceMesh | None
    replicated: tuple[str, ...]

    @classmethod
    def read(cls, layout: Any, mesh: DeviceMesh | None, missing_axes: MissingAxes) -> _FromTree:
        found, _ = named_leaves(layout, "layout", lambda node: node is None or is_place(node))
        lacking: dict[str, None] = {}
        leaves = {
            name: _place(name, leaf, mesh, missing_axes, lacking) for name, leaf in found.items()
        }
        return cls(leaves, mesh, tuple(lacking))

    def of(self, tensor: ToShard, /) -> TensorSharding:
        key = self._key(tensor.name)
        found = None if key is None else self.leaves[key]
        if found is None:
            return TensorSharding()
        if isinstance(found, TensorLayout) and found.device_mesh is not None:
            return TensorSharding(checked_sharding(found, tensor), True)
        found = found if tensor.shape else unsplit(found)
        return TensorSharding(real_sharding(found, tensor.name), True)

    def names(self, tensor: ToShard, /) -> bool:
        key = self._key(tensor.name)
        return (
            key is None or self.leaves[key] is not None
        )  # ``lacking`` reports a name without a key

    def look_up(self, names: Sequence[str], /) -> None:
        pass  # a tree has no patterns

    def warnings(self, _names: Sequence[str], _: Sequence[TensorSpec], /) -> tuple[str, ...]:
        return tuple(replicated_warnings(self.mesh, self.replicated))  # ``idle`` reports the others

    def lacking(self, names: Collection[str], /) -> list[str]:
        return [name for name in names if self._key(name) is None]

    def idle(self, names: Collection[str], /) -> list[str]:
        used = {self._key(name) for name in names}
        return [key for key in self.leaves if key not in used]

    def _key(self, name: str) -> str | None:
        return leaf_above(name, self.leaves)


def _needs_no_mesh(place: Any, mesh: DeviceMesh | None) -> bool:
    import jax

    is_whole = isinstance(place, jax.sharding.Sharding) and not is_from_jax(place, "NamedSharding")
    return is_whole or (mesh is None and not is_from_jax(place, "PartitionSpec"))


def _place(
    name: str,
    leaf: Any,
    mesh: DeviceMesh | None,
    missing_axes: MissingAxes,
    lacking: dict[str, None],
) -> TensorLayout | jax.sharding.Sharding | None:
    """The sharding of a leaf of a tree of layouts, a layout where ``mesh`` is given; LayoutError, naming it, for
    anything else."""
    place = getattr(leaf, "sharding", None) if is_struct(leaf) else own_layout(leaf)
    if place is None:
        return None
    if not is_place(place):
        raise LayoutError(
            f"layout is {place!r}{f' at {name!r}' if name else ''}; expected a LayoutMap, the path or content of a "
            "layout file, or a tree of TensorLayouts, jax shardings or jax.ShapeDtypeStructs"
        )
    if _needs_no_mesh(place, mesh):
        whole: TensorLayout | jax.sharding.Sharding = place
        return whole
    try:
        return layout_over(place, mesh, missing_axes, lacking)
    except LayoutError as error:
        raise LayoutError(f"the layout of {name!r}: {error}" if name else str(error)) from None


class TensorSharding(Struct, frozen=True):
    """The sharding that a layout gives one tensor.

    Attributes:
        sharding: None for jax's default device.
        is_named: true if the layout names this tensor; false for its default.
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
    from jax.sharding import AbstractMesh, NamedSharding

    found: jax.sharding.Sharding = sharding
    try:
        if isinstance(sharding, TensorLayout):
            found = placed_sharding(sharding)
        elif isinstance(sharding, NamedSharding) and isinstance(sharding.mesh, AbstractMesh):
            mesh = mesh_to_jax(on_all_devices(mesh_from_jax(sharding.mesh)))
            found = NamedSharding(mesh, sharding.spec, memory_kind=sharding.memory_kind)
    except LayoutError as error:
        raise LayoutError(f"{name!r}: {error}") from None
    return found


def unsplit(sharding: Any) -> Any:
    """The sharding on the same devices, but whole: a scalar has no other, and jax refuses a spec that names an axis."""
    from jax.sharding import NamedSharding, PartitionSpec

    if isinstance(sharding, TensorLayout):
        return TensorLayout((), sharding.device_mesh)
    if isinstance(sharding, NamedSharding):
        kind = sharding.memory_kind
        return NamedSharding(sharding.mesh, PartitionSpec(), memory_kind=kind)
    return sharding
