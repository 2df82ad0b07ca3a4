"""The slices.json of a tree whose data Orbax writes: entries, and digests of the live arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct

from reshard.checksums.sums import digest_text, sum_of_box
from reshard.formats.base import TargetCheckpoint, TargetTensor
from reshard.formats.contents import Container, Item
from reshard.formats.encoding import Encoding
from reshard.formats.orbax.form import OrbaxForm
from reshard.formats.orbax.write.finish import slice_file
from reshard.formats.orbax.write.item_tree import item_trees
from reshard.formats.slices.slice_file import render_slices
from reshard.geometry.grid import Grid
from reshard.layout.tensor_spec import TensorSpec
from reshard.saving.host_chunk import elements, keep_data
from reshard.saving.plan import live_tensors
from reshard.saving.tensors import DeviceShard, LiveTensor
from reshard.saving.tree import LiveLeaf, live_leaves
from reshard.variables.sharded.variable import ShardedVariable


class SliceRecord(Struct, frozen=True):
    """The slices of a tree, and the data whose digests this process computes.

    Attributes:
        shards: the shards of each tensor whose digests this process computes.
    """

    target: TargetCheckpoint
    shards: Mapping[str, tuple[DeviceShard, ...]]

    def sums(self) -> dict[str, int]:
        """The contribution of this process's shards to each tensor's CRC-64/NVME (its linear part)."""
        return {
            name: _sum(self.target.tensors[name].spec, shards)
            for name, shards in self.shards.items()
        }

    def render(self, sums: Mapping[str, int], files: Mapping[str, bytes]) -> bytes:
        """The bytes of slices.json.

        Args:
            sums: the contributions of all processes, added up.
            files: the item's other metadata files, whose digests are recorded.
        """
        (tree,) = item_trees(self.target)
        digests = {
            name: digest_text(value, self.target.tensors[name].spec.nbytes)
            for name, value in sums.items()
        }
        return render_slices(slice_file(tree, digests, files))


def record_slices(tree: Any, process: int, count: int) -> SliceRecord:
    """Records the slices of a tree as Orbax stores it, and keeps its data; shards of a ShardedVariable are children.

    Raises TreeError, naming every leaf that cannot be recorded.
    """
    leaves = live_leaves(_opened(tree))
    # Orbax refuses arrays that one process has alone, so those that this process has whole are copies.
    own = {
        x.leaf.name for x in leaves if count > 1 and getattr(x.array, "is_fully_addressable", False)
    }
    tensors = live_tensors(leaves, own)
    target = _checkpoint(leaves, tensors)
    item_trees(target)  # refuses names that collide
    return SliceRecord(target, _shards_of(tensors, process))


def _checkpoint(leaves: Sequence[LiveLeaf], tensors: Sequence[LiveTensor]) -> TargetCheckpoint:
    by_path = {t.leaf.path: t.leaf for t in tensors}
    return TargetCheckpoint(
        Container("v0", (Item("", "", is_tree=True),)),
        {t.name: _target(t) for t in tensors},
        [by_path.get(leaf.leaf.path, leaf.leaf) for leaf in leaves],
        {},
        OrbaxForm(),
    )


def _shards_of(
    tensors: Sequence[LiveTensor], process: int
) -> Mapping[str, tuple[DeviceShard, ...]]:
    """The shards of each tensor that the process holds first, with their data kept."""
    mine = {t.name: [s for s in t.shards if s.holders[0] == process] for t in tensors}
    wanted = {id(shard.data) for shards in mine.values() for shard in shards}
    held = keep_data({t.name: t for t in tensors}, wanted)
    boxes = {name: {s.box for s in shards} for name, shards in mine.items()}
    return {n: tuple(s for s in t.shards if s.box in boxes[n]) for n, t in held.items()}


def _opened(tree: Any) -> Any:
    import jax

    return jax.tree.map(
        lambda node: list(node.variables) if isinstance(node, ShardedVariable) else node,
        tree,
        is_leaf=lambda node: isinstance(node, ShardedVariable),
    )


def _target(tensor: LiveTensor) -> TargetTensor:
    whole = Grid.whole(tensor.shape)
    spec = TensorSpec(tensor.name, tensor.shape, tensor.dtype, whole, layout=tensor.layout)
    return TargetTensor(spec, Encoding(), tensor.leaf, tensor.partition, tensor.slices)


def _sum(spec: TensorSpec, shards: tuple[DeviceShard, ...]) -> int:
    total = 0
    for shard in shards:
        data = elements(shard.data, shard.box.relative_to(shard.box.start))
        little = data.astype(data.dtype.newbyteorder("<"), copy=False)
        total ^= sum_of_box(little, shard.box, spec.shape)
    return total
