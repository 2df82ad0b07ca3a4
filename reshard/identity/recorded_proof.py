"""Proofs of slices of a checkpoint that records its identity.

Hashes down to the level that ``identity.tree`` keeps are taken from there. Deeper ones are computed from the elements: of each kept
node that the edge of the slice cuts, all elements are read, and must give the hash that is recorded.
"""

from __future__ import annotations

from functools import lru_cache

from reshard.errors import CorruptError
from reshard.formats.base import Reader
from reshard.formats.contents import StoredTensor
from reshard.geometry.box import Box
from reshard.identity.hashes import HASH_BYTES, folded
from reshard.identity.identity_file import read_nodes
from reshard.identity.leaf_blocks import check_tree_fits, leaf_tree_of
from reshard.identity.leaf_tree import KEPT_BYTES
from reshard.identity.read_leaves import leaves_of_box
from reshard.identity.slice_proof import (
    Node,
    check_aligned,
    node_of_leaves,
    nodes_of_slice,
    proof_of,
)
from reshard.identity.weights_identity import WeightsIdentity
from reshard.record import Record
from reshard.storage.location import Location


class SliceProof(Record, frozen=True):
    """The proof that a slice is part of a tensor of an identity.

    Attributes:
        root: of the identity.
        name: of the tensor.
        dtype, shape, top: of the tensor, as the identity has them.
        hashes: of the largest nodes of the tensor's tree outside of the slice, from the left, 32 bytes each.
    """

    root: str
    name: str
    dtype: str
    shape: tuple[int, ...]
    top: str
    box: Box
    hashes: bytes

    def __repr__(self) -> str:
        size = f"{len(self.hashes):,} bytes"
        return f"SliceProof({self.name!r} {self.box}: {size}, root {self.root})"


def needs_elements(stored: StoredTensor, box: Box, max_memory: int) -> bool:
    """Whether the proof of a slice has hashes below the kept level, so that elements must be read for it.

    Raises LayoutError for a slice that cuts leaves; MemoryBudgetError.
    """
    check_tree_fits(stored, max_memory)
    tree = leaf_tree_of(stored)
    check_aligned(stored.spec.name, tree, box)
    kept = tree.kept_level(KEPT_BYTES)
    return any(node.level > kept for node in nodes_of_slice(tree, box) if not node.is_inside)


def prove_slice(
    reader: Reader, folder: Location, found: WeightsIdentity, name: str, box: Box, max_memory: int
) -> SliceProof:
    """The proof of a slice of a stored tensor.

    Raises LayoutError for a slice that cuts leaves; CorruptError where files of the identity are damaged, or elements are not those
    that the identity records; MemoryBudgetError.
    """
    stored, recorded = reader.tensors[name], found.tensors[name]
    check_tree_fits(stored, max_memory)
    tree = leaf_tree_of(stored)
    check_aligned(name, tree, box)
    level = tree.kept_level(KEPT_BYTES)
    kept = read_nodes(folder, found, (name,))[name]

    @lru_cache(maxsize=1)  # nodes come from the left, so that those of one kept node come together
    def leaves_of_kept(number: int) -> dict[int, bytes]:
        leaves = leaves_of_box(reader, stored, tree.node_box(level, number), max_memory)
        whole = node_of_leaves(tree, Node(level, number, is_inside=False), leaves)
        if whole != kept[number * HASH_BYTES : (number + 1) * HASH_BYTES]:
            raise CorruptError(
                f"{name!r} in {reader.uri!r} has other elements in {tree.node_box(level, number)} than its identity records: they, or "
                "the identity, changed since; restore it from another copy, or make the identity anew with reshard identify --write"
            )
        return leaves

    def hash_of_node(node: Node) -> bytes:
        if node.level > level:
            return node_of_leaves(tree, node, leaves_of_kept(node.number >> (node.level - level)))
        wide = level - node.level
        own = kept[(node.number << wide) * HASH_BYTES : ((node.number + 1) << wide) * HASH_BYTES]
        return folded(own, 0)

    hashes = proof_of(tree, box, hash_of_node)
    return SliceProof(found.root, name, recorded.dtype, recorded.shape, recorded.top, box, hashes)
