"""The part of each target tensor that every device needs, from a layout file, a LayoutMap, a tree of layouts, or the source."""

from __future__ import annotations

import itertools
import os
import re
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, get_args

from msgspec import Struct

from reshard.errors import LayoutError, MissingPackageError
from reshard.formats.limits import MAX_PATH_KEYS
from reshard.geometry.grid import Box, Grid
from reshard.layout.axes import Axis, known_axes, show_axes, used_axes
from reshard.layout.bridges.from_keras import is_from_keras, own_layout
from reshard.layout.bridges.jax_sharding import is_from_jax, layout_from_sharding
from reshard.layout.device_mesh import DeviceMesh, MeshLike, as_mesh, is_other_mesh, parse_mesh
from reshard.layout.layout_file import (
    REPLICATE_THEM,
    LayoutFile,
    MissingAxes,
    Rule,
    layout_for,
    named,
    overlaps,
    unmatched_rules,
)
from reshard.layout.layout_map import LayoutMap
from reshard.layout.prefixes import pattern_hint
from reshard.layout.read_layout import parse_layout
from reshard.layout.tensor_layout import TensorLayout
from reshard.layout.tensor_spec import TensorSpec
from reshard.planning.plans import TensorPlan
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
        from reshard.formats.leaf_paths import named_leaves

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


class SameAxes(Struct, frozen=True):
    """Every tensor is split by the same axes as its source, over another mesh.

    Attributes:
        missing_axes: the treatment of axes of the source that the mesh lacks.
    """

    mesh: DeviceMesh
    missing_axes: MissingAxes = "error"


Layout = LayoutFile | LayoutMap | LayoutTree | SameAxes


class TensorSplit(Struct, frozen=True):
    """Layout and slices of one target tensor, and its partition beyond mesh axes."""

    layout: TensorLayout | None
    slices: Grid
    partition: Mapping[str, Any] | None = None


def layout_of(
    layout: Any,
    mesh: str | MeshLike | None,
    missing_axes: MissingAxes = "error",
    *,
    keeps_devices: bool = False,
) -> Layout | None:
    """The layout that the user gave, as one Layout: from the content of a layout file, a parsed layout, or a tree of
    layouts. A path has been read before (``layout.read_layout.given_layout``).

    ``mesh`` replaces the mesh of a layout file and is the mesh of a tree's PartitionSpecs; without a layout, tensors
    keep the source's axes. ``keeps_devices`` is for live arrays: the mesh keeps its devices; else it is as a checkpoint
    records it. Raises LayoutError if layout or mesh is not valid.
    """
    found = mesh_of(mesh)
    found = found if found is None or keeps_devices else found.recorded
    check_missing_axes(missing_axes)
    if not isinstance(layout, LayoutMap):
        layout = own_layout(layout)
    if isinstance(layout, LayoutMap):
        if found is not None:
            raise LayoutError(
                "a LayoutMap has a mesh of its own; leave 'mesh' out, or give it to the LayoutMap"
            )
        return layout
    if layout is None:
        return None if found is None else SameAxes(found, missing_axes)
    if is_layout_tree(layout):
        return layout_tree(layout, found, missing_axes)
    file = _file(layout)
    if file.map is not None:
        raise LayoutError(
            f"{file.where} has a map, which only plan, convert, restore and verify apply; give the mesh and the rules in "
            "a file of their own"
        )
    return file if found is None else file.with_mesh(found, missing_axes)


def mesh_over(layout: Layout | None) -> DeviceMesh | None:
    """The one mesh of a layout; None for a layout without a mesh, and for a tree."""
    if isinstance(layout, LayoutMap):
        return layout.device_mesh
    return layout.mesh if isinstance(layout, LayoutFile | SameAxes) else None


def check_missing_axes(missing_axes: object) -> None:
    """Raises LayoutError unless it is one of the choices."""
    if missing_axes not in get_args(MissingAxes):
        raise LayoutError(f"missing_axes is {missing_axes!r}; expected 'error' or 'replicate'")


def mesh_of(mesh: str | MeshLike | None) -> DeviceMesh | None:
    """The mesh that the user gave, with its devices; LayoutError for anything else."""
    if isinstance(mesh, str):
        return parse_mesh(mesh)
    if not (mesh is None or isinstance(mesh, DeviceMesh) or is_other_mesh(mesh)):
        raise LayoutError(
            f"mesh is {mesh!r}; expected a DeviceMesh, a jax.sharding.Mesh or text such as 'data=4,model=2'"
        )
    return None if mesh is None else as_mesh(mesh)


def _file(layout: Any) -> LayoutFile:
    if isinstance(layout, LayoutFile):
        return layout
    if isinstance(layout, Mapping):
        return parse_layout(layout)
    raise LayoutError(
        f"layout is {layout!r}; expected the path of a layout file, its content as a mapping, a LayoutMap, or "
        f"a tree of TensorLayouts, jax shardings or jax.ShapeDtypeStructs"
    )


def look_up(layout: Layout | None, names: Sequence[str]) -> None:
    """Searches the patterns of a layout file in all of these names at once; ``split`` then uses the result."""
    if isinstance(layout, LayoutFile):
        layout.found.learn(names)


def split(target: TensorSpec, source: TensorSpec, layout: Layout | None) -> TensorSplit:
    """The split of ``target``; that of the source without a layout, or with a file that only has changes."""
    if isinstance(layout, LayoutMap):
        return _split_by_map(target, layout)
    if isinstance(layout, SameAxes):
        return _split_again(target, source, layout)
    if isinstance(layout, LayoutTree):
        return _split_as(target, layout.layout(target))
    if layout is None or keeps_layouts(layout):
        return TensorSplit(source.layout, source.slices)
    resolved = layout_for(layout, target.name, target.shape, target.dtype)
    recorded = resolved.layout if resolved.layout.device_mesh is not None else None
    return TensorSplit(recorded, resolved.slices, resolved.partition)


def keeps_layouts(layout: Layout | None) -> bool:
    """True if every tensor keeps its source's layout, devices included."""
    return layout is None or (isinstance(layout, LayoutFile) and not layout.has_layout)


def _split_again(target: TensorSpec, source: TensorSpec, same: SameAxes) -> TensorSplit:
    axes = source.layout.axes if source.layout is not None else ()
    layout = over_mesh(target.name, axes, same)
    return TensorSplit(layout, layout.grid(target.shape, target.name))


def over_mesh(name: str, axes: tuple[Axis, ...], same: SameAxes) -> TensorLayout:
    """The axes of a source over another mesh; LayoutError, naming the tensor, for axes that the mesh lacks."""
    mesh = same.mesh
    if same.missing_axes == "replicate":
        axes = known_axes(axes, mesh.axis_names)
    try:
        return TensorLayout(axes, mesh)
    except LayoutError as error:
        raise LayoutError(
            f"{name!r} keeps the source's axes {show_axes(axes)} over {mesh}: {error}; name the mesh's axes "
            f"as the source does, say with a layout how tensors are split, or {REPLICATE_THEM}"
        ) from None


def _split_by_map(target: TensorSpec, layout: LayoutMap) -> TensorSplit:
    found = layout[target.name]
    if found is None and layout.device_mesh is not None:
        found = TensorLayout((), layout.device_mesh)
    return _split_as(target, found)


def _split_as(target: TensorSpec, found: TensorLayout | None) -> TensorSplit:
    if found is None:
        return TensorSplit(None, Grid.whole(target.shape))
    axes = found.axes if target.shape else ()  # a scalar has only one layout
    padded = (*axes, *[None] * (len(target.shape) - len(axes)))
    found = TensorLayout(padded, found.recorded.device_mesh)
    return TensorSplit(found, found.grid(target.shape, target.name))


def layout_warnings(
    layout: Layout | None,
    names: Sequence[str],
    sources: Iterable[TensorSpec] = (),
    strings: Sequence[str] = (),
) -> Iterator[str]:
    """One sentence for each axis that is left out, rule that matches nothing, and tensor that several rules match.

    ``names`` are the target's; ``sources`` are the tensors that they are made from; ``strings`` are the names of tensors of strings, which
    are stored whole.
    """
    yield from _replicated(layout, sources)
    names = [*names, *strings]
    if isinstance(layout, LayoutMap):
        yield from _idle_keys(layout, names)
    elif isinstance(layout, LayoutTree):
        yield from (
            f"the leaf {k!r} of the tree of layouts matches no tensor" for k in layout.idle(names)
        )
    elif isinstance(layout, LayoutFile):
        yield from _rule_warnings(layout, names)
        yield from _whole_strings(layout, strings)


def _whole_strings(layout: LayoutFile, strings: Sequence[str]) -> Iterator[str]:
    """A warning that names the tensors of strings that a rule or partition would cut."""
    rules = layout.all_rules
    first = {name: rules[found[0]] for name in strings if (found := layout.found.of(name))}
    cut = [name for name, rule in first.items() if not isinstance(rule, Rule) or any(rule.axes)]
    if cut:
        more = f" and {len(cut) - 1:,} more" if cut[1:] else ""
        yield f"{cut[0]!r} (strings){more} is stored whole, though {named(first[cut[0]])} matches it: strings are never cut"


def _idle_keys(layout: LayoutMap, names: Sequence[str]) -> Iterator[str]:
    matched = {key for name in names for key in layout.match(name)}
    for key in layout:
        if key not in matched:
            hint = pattern_hint(re.compile(key), names)
            yield f"the layout map's key {key!r} matches no tensor{hint}"


def _rule_warnings(layout: LayoutFile, names: Sequence[str]) -> Iterator[str]:
    look_up(layout, names)
    for rule in unmatched_rules(layout, names):
        hint = pattern_hint(rule.compiled(), names)
        yield f"{rule.label or repr(rule.match)} matches no tensor{hint}"
    for overlap in overlaps(layout, names):
        some = ", ".join(overlap.names[:3]) + (", …" if len(overlap.names) > 3 else "")
        count = len(overlap.names)
        both = "1 tensor matches" if count == 1 else f"{count} tensors match"
        yield f"{both} both {overlap.winner} and {overlap.shadowed}; the first decides ({some})"


def _replicated(layout: Layout | None, sources: Iterable[TensorSpec]) -> Iterator[str]:
    """A warning that names the axes that the mesh lacks, if they are replicated."""
    mesh: DeviceMesh | None = None
    lacking: tuple[str, ...] = ()
    if isinstance(layout, LayoutFile):
        mesh, lacking = layout.mesh, layout.replicated
    elif isinstance(layout, SameAxes) and layout.missing_axes == "replicate":
        axes = (name for s in sources if s.layout is not None for name in used_axes(s.layout.axes))
        mesh = layout.mesh
        lacking = tuple(dict.fromkeys(name for name in axes if name not in mesh.axis_names))
    elif isinstance(layout, LayoutTree):
        lacking = layout.replicated
    yield from replicated_warnings(mesh, lacking)


def replicated_warnings(mesh: DeviceMesh | None, lacking: Sequence[str]) -> Iterator[str]:
    """A warning that names the axes that are replicated because the mesh lacks them."""
    if lacking:
        named = ", ".join(map(repr, lacking))
        which = f"axis {named}; what it" if len(lacking) == 1 else f"axes {named}; what they"
        yield f"{mesh or 'the mesh'} has no {which} split is replicated instead"


class Share(Struct, frozen=True):
    """The part of a target shard's elements that one source shard had.

    Attributes:
        target, source: shards, numbered row-major over the grid of the layout.
        share: above 0, at most 1.
    """

    target: int
    source: int
    share: float


def shares(tensor: TensorPlan) -> Iterator[Share]:
    """Every share of every target shard, target shards in order; empty tensors have none.

    Sources are the shards of its first piece; elements of a target shard that this piece does not fill belong to none.
    """
    piece = tensor.piece
    sources, targets = tensor.source.spec.slices, tensor.target.spec.slices
    for number, index in enumerate(targets.indices()):
        shard = targets.box(index)
        for part in piece.of_target(shard):
            for source, size in _overlaps(sources, piece.to_source(part)):
                yield Share(number, source, size / shard.size)


def _overlaps(grid: Grid, box: Box) -> Iterator[tuple[int, int]]:
    """Number of each part that ``box`` touches, and the count of elements that they share."""
    for index in itertools.product(*grid.overlapping(box)):
        common = grid.box(index).intersect(box) if box.rank else box
        if common is not None:
            yield grid.number_of(index), common.size
