"""Proofs of slices of a checkpoint that records its identity.

Hashes down to the level that ``identity.tree`` keeps are taken from there. Deeper ones are computed from the elements: where the
edge of the slice cuts a kept node, all elements of the node are read, and must give the recorded hash.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import msgspec

from reshard.answers.record import Record, values
from reshard.arguments import path_of
from reshard.errors import CorruptError, FormatError, TreeError, VerificationError
from reshard.formats.base import Reader
from reshard.formats.contents import StoredTensor
from reshard.geometry.box import Box
from reshard.geometry.dtypes import PACKED, numpy_dtype, opaque_dtype, storage_bytes
from reshard.identity.expected_weights import expected_weights
from reshard.identity.hashes import HASH_BYTES, checked_root, folded
from reshard.identity.identification import Identification
from reshard.identity.identity_file import hashed_dtype, read_nodes, tree_of_identity
from reshard.identity.leaf_blocks import check_tree_fits, leaf_tree_of
from reshard.identity.leaf_tree import KEPT_BYTES
from reshard.identity.read_leaves import leaves_of_box
from reshard.identity.slice_proof import (
    ProofNode,
    check_aligned,
    check_slice,
    node_of_leaves,
    nodes_of_slice,
    proof_of,
)
from reshard.identity.weights_identity import TensorIdentity, WeightsIdentity
from reshard.storage.location import Location

if TYPE_CHECKING:
    import numpy.typing as npt

    from reshard.arguments import Path

    Array = npt.NDArray[Any]


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
