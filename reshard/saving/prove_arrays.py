"""Proves that live arrays are the weights of an identity: each process its own shards, without the others.

The nodes of about 1 MiB that an identity keeps are compared one after the other. A node is taken from one shard, or put
together from several of the same array, so that no more than one is copied from devices at a time.

ProofReport: the result of comparing live arrays with an identity.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from itertools import product
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from reshard.answers.record import Record, counted, several
from reshard.errors import CorruptError, FormatError, TreeError
from reshard.formats.orbax.container import refuse_same_names
from reshard.geometry.dtypes import VALUE_BITS, numpy_dtype, opaque_dtype
from reshard.geometry.grid import Box
from reshard.geometry.sizes import format_bytes
from reshard.identity.identity_file import tree_of_identity
from reshard.identity.leaf_tree import HASH_BYTES, KEPT_BYTES, LeafTree, check_installed
from reshard.identity.read_leaves import LeafHashing, as_hashed
from reshard.identity.slice_proof import ProofNode, aligned_slice, node_of_leaves
from reshard.identity.weights_identity import TensorIdentity, WeightsIdentity, key_implementation
from reshard.saving.plan import ChunkPart, elements, parts
from reshard.saving.tensors import LiveTensor, live_tensor
from reshard.saving.tree import live_leaves

SHOWN_BOXES = 3
"""Most differing parts that a report names; it counts the bytes of all."""


class ArrayProof(Record, frozen=True):
    """The result for this process's shards of one array; replicas count once.

    Attributes:
        nbytes: of the shards.
        proved_bytes: bytes that are those of the identity.
        cut_bytes: bytes in nodes of about 1 MiB that this process has only in part.
        needed: the smallest slice around a shard that cuts no node; None if none is cut.
        different_bytes: bytes in nodes that differ.
        differs: the boxes of the first of these nodes.
        problem: the reason why nothing could be compared; "" for none.
    """

    name: str
    nbytes: int
    proved_bytes: int = 0
    cut_bytes: int = 0
    needed: Box | None = None
    different_bytes: int = 0
    differs: tuple[Box, ...] = ()
    problem: str = ""

    @property
    def is_ok(self) -> bool:
        """True if every byte is proved."""
        return not self.problem and self.proved_bytes == self.nbytes

    def sentences(self) -> Iterator[str]:
        """Sentences about unproved bytes, each with the remedy."""
        if self.problem:
            yield f"{self.name!r} {self.problem}"
        if self.different_bytes:
            boxes = ", ".join(map(str, self.differs))
            yield (
                f"{self.name!r} differs from the identity in {boxes}, {format_bytes(self.different_bytes)} in all; load it anew from a "
                "copy that reshard verify --identity accepts"
            )
        if self.cut_bytes:
            yield (
                f"{format_bytes(self.cut_bytes)} of {self.name!r} cannot be proved from the shards of this process, which cut nodes of "
                f"the identity; a process with {self.needed} could"
            )


class ProofReport(Record, frozen=True):
    """The result of ``reshard.prove`` in this process: the bytes of live arrays that are those of an identity.

    Attributes:
        root: of the identity.
        tensors: in the order of the tree.
        absent: the number of the identity's tensors without an array here.
        seconds: wall time.
    """

    root: str
    tensors: tuple[ArrayProof, ...]
    absent: int
    seconds: float

    @property
    def is_ok(self) -> bool:
        """True if every byte of every array in this process is proved; tensors without an array do not count."""
        return all(tensor.is_ok for tensor in self.tensors)

    @property
    def has_differences(self) -> bool:
        """True if something contradicts the identity: other bytes, another shape or dtype, or a name that it lacks."""
        return any(tensor.problem or tensor.different_bytes for tensor in self.tensors)

    @property
    def nbytes(self) -> int:
        """Bytes of the shards of this process."""
        return sum(tensor.nbytes for tensor in self.tensors)

    @property
    def proved_bytes(self) -> int:
        """The number of these bytes that are those of the identity."""
        return sum(tensor.proved_bytes for tensor in self.tensors)

    @property
    def sentences(self) -> tuple[str, ...]:
        """Sentences about unproved bytes, each with the remedy."""
        return tuple(said for tensor in self.tensors for said in tensor.sentences())

    def __repr__(self) -> str:
        proved = f"{format_bytes(self.proved_bytes)} of {format_bytes(self.nbytes)} proved"
        headline = f"{counted(len(self.tensors), 'tensor')}, {proved} in {self.seconds:.1f} s"
        absent = (
            [f"{counted(self.absent, 'tensor')} of the identity not here"] if self.absent else []
        )
        return several("ProofReport", headline, self.sentences, [*absent, f"root: {self.root}"])


if TYPE_CHECKING:
    import numpy.typing as npt

    Array = npt.NDArray[Any]


class _Node(Struct, frozen=True):
    """A node with elements in this process.

    Attributes:
        held: the number of these elements.
    """

    number: int
    box: Box
    parts: Sequence[ChunkPart]
    held: int


def prove_arrays(arrays: Any, expected: WeightsIdentity) -> ProofReport:
    """Compares the shards of this process; see ``reshard.prove``."""
    started = time.monotonic()
    check_installed()
    leaves = [leaf for leaf in live_leaves(arrays) if leaf.array is not None]
    try:
        refuse_same_names([leaf.leaf for leaf in leaves])
    except FormatError as error:
        raise TreeError(f"the tree cannot be proved: {error}") from None
    found = tuple(_proof(live_tensor(leaf, is_own=False), expected) for leaf in leaves)
    absent = len(expected.tensors.keys() - {leaf.leaf.name for leaf in leaves})
    return ProofReport(expected.root, found, absent, time.monotonic() - started)


def _proof(tensor: LiveTensor, expected: WeightsIdentity) -> ArrayProof:
    held = [shard.data.size for shard in tensor.shards if shard.data is not None]
    nbytes = sum(held) * numpy_dtype(tensor.dtype).itemsize
    recorded = expected.tensors.get(tensor.name)
    if recorded is None:
        problem = "is no tensor of the identity; give arrays by the names that their checkpoint has"
        return ArrayProof(tensor.name, nbytes, problem=problem)
    if problem := _problem(tensor, recorded):
        return ArrayProof(tensor.name, nbytes, problem=problem)
    return _compared(tensor, nbytes, tree_of_identity(recorded), expected.nodes[tensor.name])


def _problem(tensor: LiveTensor, recorded: TensorIdentity) -> str:
    """The reason why an array cannot be compared with a tensor of an identity; "" if it can."""
    is_key = tensor.leaf.meta.get("ext_metadata") is not None
    dtype = key_implementation(tensor.leaf) if is_key else tensor.dtype
    if (dtype, tensor.shape) != (recorded.dtype, recorded.shape):
        return (
            f"is {dtype} {list(tensor.shape)}, but the identity has {recorded.dtype} {list(recorded.shape)}; compare arrays before they "
            "are cast or reshaped, or with the identity of a checkpoint that was"
        )
    return ""


def _compared(tensor: LiveTensor, nbytes: int, tree: LeafTree, kept: bytes) -> ArrayProof:
    level = tree.kept_level(KEPT_BYTES)
    cut, different, differs = 0, 0, list[Box]()
    needed: Box | None = None
    for node in _nodes(tensor, tree, level):
        size = node.held * tree.itemsize
        if node.held != node.box.size:
            cut += size
            needed = needed or aligned_slice(tree, node.parts[0][0].box, level)
        elif not _is_equal(tensor, tree, level, node, kept):
            different += size
            differs = [*differs, node.box][:SHOWN_BOXES]
    proved = nbytes - cut - different
    return ArrayProof(tensor.name, nbytes, proved, cut, needed, different, tuple(differs))


def _nodes(tensor: LiveTensor, tree: LeafTree, level: int) -> Iterator[_Node]:
    """The nodes of a level with elements in this process, each once."""
    grid = tree.level_grid(level)
    local = [shard.box for shard in tensor.shards if shard.data is not None]
    indices = dict.fromkeys(i for box in local for i in product(*grid.overlapping(box)))
    for index in sorted(indices):
        box = grid.box(index)
        found = [part for part in parts(tensor, box) if part[0].data is not None]
        held = sum(local.size for _, local, _ in found)
        if found:  # a shard of every k-th row may have none
            yield _Node(tree.node_at(level, index), box, found, held)


def _is_equal(tensor: LiveTensor, tree: LeafTree, level: int, node: _Node, kept: bytes) -> bool:
    hashing = LeafHashing(tree)
    try:
        hashing.add(as_hashed(tensor.name, _elements(tensor, tree, node), tensor.dtype), node.box)
    except CorruptError:  # a bool that is neither 0 nor 1 has no identity
        return False
    found = node_of_leaves(
        tree, ProofNode(level, node.number, is_inside=True), dict(hashing.finished())
    )
    return found == kept[node.number * HASH_BYTES : (node.number + 1) * HASH_BYTES]


def _elements(tensor: LiveTensor, tree: LeafTree, node: _Node) -> Array:
    """The elements of a node as bits: a view of one shard if it may stay as it is, else a copy."""
    import numpy as np

    dtype, bits = numpy_dtype(tensor.dtype), opaque_dtype(tree.itemsize)
    if len(node.parts) == 1 and tensor.dtype not in VALUE_BITS:
        shard, local, _ = node.parts[0]
        view = elements(shard.data, local)
        if view.dtype == dtype:
            return view.view(bits)
    whole: Array = np.empty(node.box.shape, dtype)
    for shard, local, places in node.parts:
        whole[places] = elements(shard.data, local)
    return whole.view(bits)
