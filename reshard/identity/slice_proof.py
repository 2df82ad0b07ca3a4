"""The proof that a slice is part of a tensor: hashes of the largest nodes of the tensor's tree that lie outside of the slice.

The tree is walked from the left. A node inside of the slice is hashed from its elements, a node outside is the next hash of the
proof, and any other is its two halves::

    rows 4:8 of (8, 6)       top ── left half of the rows      outside: the hash of the proof
                              └──── right half of the rows     inside: hashed from the elements

The walk follows from shape, item size and slice, so that a proof has one length, which is known before it is read.

Hashes down to the level that ``identity.tree`` keeps are taken from there. Deeper ones are computed from the elements: where the
edge of the slice cuts a kept node, all elements of the node are read, and must give the recorded hash.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct

from reshard.answers.record import Record, values
from reshard.arguments import path_of
from reshard.errors import CorruptError, FormatError, LayoutError, TreeError, VerificationError
from reshard.formats.base import Reader
from reshard.formats.contents import StoredTensor
from reshard.geometry.dtypes import PACKED, numpy_dtype, opaque_dtype, storage_bytes
from reshard.geometry.grid import Box
from reshard.identity.identification import Identification, expected_weights
from reshard.identity.identity_file import hashed_dtype, read_nodes, tree_of_identity
from reshard.identity.leaf_tree import HASH_BYTES, KEPT_BYTES, LeafTree, checked_root, folded
from reshard.identity.read_leaves import (
    LeafHashing,
    as_hashed,
    check_tree_fits,
    leaf_tree_of,
    leaves_of_box,
)
from reshard.identity.weights_identity import TensorIdentity, WeightsIdentity
from reshard.storage.location import Location

if TYPE_CHECKING:
    import numpy.typing as npt

    from reshard.arguments import Path

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


class _Written(msgspec.Struct, frozen=True):
    """A proof as JSON: its slice as ``start:stop`` for each dimension, and its hashes in base64."""

    root: str
    name: str
    dtype: str
    shape: tuple[int, ...]
    top: str
    slice: str
    proof: str


class SliceProof(Record, frozen=True):
    """The proof that a slice is part of a tensor of an identity; ``to_dict`` gives the JSON that a server sends.

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

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> SliceProof:
        """The proof in the JSON of ``to_dict`` or of a server's ``proof.json``; checks its form alone, and raises FormatError."""
        try:
            found = msgspec.convert(document, _Written)
            hashes = base64.b64decode(found.proof, validate=True)
        except (msgspec.ValidationError, ValueError) as error:
            raise _no_proof(str(error)) from None
        if _SLICE.fullmatch(found.slice) is None:
            raise _no_proof(f"its slice is {found.slice[:80]!r}")
        bounds = [part.split(":") for part in found.slice.split(",") if part]
        box = Box(tuple(int(a) for a, _ in bounds), tuple(int(b) for _, b in bounds))
        return cls(found.root, found.name, found.dtype, found.shape, found.top, box, hashes)

    def check(
        self, array: Any, identity: Path | Identification | WeightsIdentity, *, root: str
    ) -> None:
        """Checks that an array is this slice of the weights with a root, wherever both came from.

        A proof leads to the top of its tensor. The root is made of the tops of all tensors, so that the ``identity.json`` of the weights
        is needed too. Neither it nor the proof need be trusted, but ``root``.

        Args:
            array: the elements, of the slice's shape and the tensor's dtype: numpy, jax, or anything that ``np.asarray`` takes. For types
                that numpy lacks (``float4_e2m1fn_x2``) the bytes; for PRNG keys their data.
            identity: the folder of an ``identity.json``, or that file, or the result of ``identify``.
            root: that you trust, 64 hex digits.

        Raises VerificationError where it is not, LayoutError for a slice that has no proof, TreeError where the identity has no such tensor,
        PlanError for a root that is none, and the errors of reading the files.

        >>> proof = SliceProof.from_dict(json.load(open("proof.json")))  # doctest: +SKIP
        >>> proof.check(array, "identity", root="d0c8…")  # doctest: +SKIP
        """
        given = (
            identity
            if isinstance(identity, Identification | WeightsIdentity)
            else path_of("identity", identity)
        )
        known = expected_weights(given, checked_root("root", root), with_tree=False)
        tensor = known.tensors.get(self.name)
        if tensor is None:
            raise TreeError(
                f"the identity {known.root} has no tensor {self.name!r}; it has {len(known.tensors)}"
            )
        if (self.root, self.dtype, self.shape, self.top) != (
            known.root,
            tensor.dtype,
            tensor.shape,
            tensor.top,
        ):
            raise VerificationError(
                f"the proof of {self.name!r} is of another tensor than that of the identity {known.root}: it says {self.dtype} "
                f"{list(self.shape)} of the root {self.root}; ask for the proof anew"
            )
        elements = _elements(array, tensor, self.box)
        dtype, tree = hashed_dtype(tensor), tree_of_identity(tensor)
        check_slice(self.name, tree, self.box, elements, dtype, self.hashes, tensor.top)

    def to_dict(self) -> dict[str, Any]:
        """The JSON that a server sends for ``/v1/tensors/proof``."""
        written = _Written(
            self.root,
            self.name,
            self.dtype,
            self.shape,
            self.top,
            str(self.box)[1:-1].replace(" ", ""),
            base64.b64encode(self.hashes).decode(),
        )
        return values(written)

    def __repr__(self) -> str:
        size = f"{len(self.hashes):,} bytes"
        return f"SliceProof({self.name!r} {self.box}: {size}, root {self.root})"


_SLICE = re.compile(r"([0-9]{1,19}:[0-9]{1,19}(,[0-9]{1,19}:[0-9]{1,19}){0,63})?")


def _no_proof(problem: str) -> FormatError:
    return FormatError(
        f"this is no proof of a slice: {problem}; give what a server sends for /v1/tensors/proof, or SliceProof.to_dict"
    )


def _elements(array: Any, tensor: TensorIdentity, box: Box) -> Array:
    """A copy of an array, whose bits are those of the slice, as bytes or bits of its dtype."""
    import numpy as np

    dtype = hashed_dtype(tensor)
    itemsize = storage_bytes(dtype)
    if dtype in PACKED:
        kind, shape = np.dtype(np.uint8), (*box.shape[:-1], box.shape[-1] * itemsize)
    else:
        kind, shape = numpy_dtype(dtype), box.shape
    found = np.array(array, order="C")
    if not _is_inside(box, tensor.shape) or (found.dtype, found.shape) != (kind, shape):
        raise VerificationError(
            f"the array is {found.dtype} {list(found.shape)}; expected {kind} {list(shape)}, the slice {box} of {tensor.name!r}, which is "
            f"{tensor.dtype} {list(tensor.shape)}: give the elements of the slice that the proof is of"
        )
    return found.reshape(-1).view(opaque_dtype(itemsize)).reshape(box.shape)


def _is_inside(box: Box, shape: tuple[int, ...]) -> bool:
    return box.rank == len(shape) and all(
        a <= b <= n for a, b, n in zip(box.start, box.stop, shape, strict=True)
    )


def needs_elements(stored: StoredTensor, box: Box, max_memory: int) -> bool:
    """True if the proof of a slice has hashes below the kept level, so that elements must be read for it.

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
        whole = node_of_leaves(tree, ProofNode(level, number, is_inside=False), leaves)
        if whole != kept[number * HASH_BYTES : (number + 1) * HASH_BYTES]:
            raise CorruptError(
                f"{name!r} in {reader.uri!r} has other elements in {tree.node_box(level, number)} than its identity records: they, or "
                "the identity, changed since; restore it from another copy, or make the identity anew with reshard identify --write"
            )
        return leaves

    def hash_of_node(node: ProofNode) -> bytes:
        if node.level > level:
            return node_of_leaves(tree, node, leaves_of_kept(node.number >> (node.level - level)))
        wide = level - node.level
        own = kept[(node.number << wide) * HASH_BYTES : ((node.number + 1) << wide) * HASH_BYTES]
        return folded(own, 0)

    hashes = proof_of(tree, box, hash_of_node)
    return SliceProof(found.root, name, recorded.dtype, recorded.shape, recorded.top, box, hashes)
