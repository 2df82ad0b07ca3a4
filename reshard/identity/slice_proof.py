"""The proof that a slice is part of a tensor: hashes of the largest nodes of the tensor's tree that lie outside of the slice.

The tree is walked from the left. A node inside of the slice is hashed from its elements, a node outside is the next hash of the
proof, and any other is its two halves::

    rows 4:8 of (8, 6)       top ── left half of the rows      outside: the hash of the proof
                              └──── right half of the rows     inside: hashed from the elements

The walk follows from shape, item size and slice, so that a proof has one length, which is known before it is read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from reshard.errors import CorruptError, LayoutError, VerificationError
from reshard.geometry.grid import Box
from reshard.identity.hashes import HASH_BYTES, folded
from reshard.identity.leaf_tree import LeafTree
from reshard.identity.read_leaves import LeafHashing, as_hashed

if TYPE_CHECKING:
    import numpy.typing as npt

    Array = npt.NDArray[Any]


class ProofNode(Struct, frozen=True):
    """A node of a tree, which lies inside or outside of a slice.

    Attributes:
        level: 0 is the top.
        number: from the left of its level.
    """

    level: int
    number: int
    is_inside: bool


def aligned_slice(tree: LeafTree, box: Box, level: int | None = None) -> Box:
    """The smallest slice that holds a box and cuts no node of a level; None is that of the leaves."""
    if not tree.order:
        return Box.full(tree.shape)
    if not box.size:
        return box
    grid = tree.level_grid(tree.depth if level is None else level)
    touched = grid.overlapping(box)
    return Box(
        tuple([c[r.start] for c, r in zip(grid.cuts, touched, strict=True)]),
        tuple([c[r.stop] for c, r in zip(grid.cuts, touched, strict=True)]),
    )


def check_aligned(name: str, tree: LeafTree, box: Box) -> None:
    """Raises LayoutError for a slice that has no proof, because it is empty or cuts a leaf."""
    if not box.size and box != Box.full(tree.shape):
        raise LayoutError(
            f"the slice {box} of {name!r} has no elements, so that there is nothing to prove; choose a slice with elements"
        )
    if (aligned := aligned_slice(tree, box)) != box:
        raise LayoutError(
            f"the slice {box} of {name!r} cuts tiles of its identity, so that it has no proof; the smallest slice that holds it "
            f"and has one is {aligned}"
        )


def nodes_of_slice(tree: LeafTree, box: Box) -> Iterator[ProofNode]:
    """The largest nodes that are inside or outside of a slice, from the left; the slice cuts no leaf."""
    waiting = [(0, 0)]
    while waiting:
        level, number = waiting.pop()
        node = tree.node_box(level, number)
        is_inside = box.contains(node)
        if is_inside or node.intersect(box) is None:
            yield ProofNode(level, number, is_inside)
        else:
            waiting += [(level + 1, 2 * number + 1), (level + 1, 2 * number)]


def proof_hashes(tree: LeafTree, box: Box) -> int:
    """The number of hashes in the proof of a slice."""
    return sum(not node.is_inside for node in nodes_of_slice(tree, box))


def proof_of(tree: LeafTree, box: Box, hash_of_node: Callable[[ProofNode], bytes]) -> bytes:
    """The proof of a slice; asks for the nodes outside of it from the left."""
    return b"".join([hash_of_node(n) for n in nodes_of_slice(tree, box) if not n.is_inside])


def check_slice(
    name: str, tree: LeafTree, box: Box, elements: Array, dtype: str, proof: bytes, top: str
) -> None:
    """Checks that elements are a slice of the tensor whose tree has a top.

    Args:
        elements: of the shape of the box, as bytes or bits of ``dtype``; bits that do not count are cleared in place.
        top: 64 hex digits.

    Raises VerificationError where they are not, or the proof is one of another slice; LayoutError for a slice without a proof.
    """
    check_aligned(name, tree, box)
    expected = HASH_BYTES * proof_hashes(tree, box)
    if len(proof) != expected:
        raise VerificationError(
            f"the proof of the slice {box} of {name!r} has {len(proof):,} bytes; expected {expected:,}; ask for the proof of this slice"
        )
    try:
        hashed = as_hashed(name, elements, dtype)
    except CorruptError as error:
        raise VerificationError(
            f"the slice {box} of {name!r} is not that of the identity, which has no such elements: {error}"
        ) from None
    hashing = LeafHashing(tree)
    hashing.add(hashed, box)
    found = _top(tree, box, dict(hashing.finished()), proof).hex()
    if found != top:
        raise VerificationError(
            f"the slice {box} of {name!r} is not that of the identity: with its proof it gives the top {found}, but expected is "
            f"{top}; it, or its proof, was changed: read it from another copy"
        )


def _top(tree: LeafTree, box: Box, leaves: Mapping[int, bytes], proof: bytes) -> bytes:
    """The hash of the whole tensor; joins each right node with its left half at once."""
    done: list[bytes] = []
    at = 0
    for node in nodes_of_slice(tree, box):
        if node.is_inside:
            done.append(node_of_leaves(tree, node, leaves))
        else:
            done.append(proof[at : at + HASH_BYTES])
            at += HASH_BYTES
        number = node.number
        while number & 1:
            right, left = done.pop(), done.pop()
            done.append(folded(left + right, 0))
            number >>= 1
    (top,) = done
    return top


def node_of_leaves(tree: LeafTree, node: ProofNode, leaves: Mapping[int, bytes]) -> bytes:
    """The hash of a node, given those of its leaves by their numbers."""
    below = tree.depth - node.level
    own = range(node.number << below, (node.number + 1) << below)
    return folded(b"".join([leaves[number] for number in own]), 0)
