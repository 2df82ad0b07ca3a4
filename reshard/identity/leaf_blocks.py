"""LeafBlock: a part of a stored tensor that ends at edges of leaves, so that its leaves are hashed from one reading of it.

A block ends at edges of chunks too, unless a part of a chunk can be read alone. It is streamed in bands. Where a band has less than a
row of leaves, their hashers stay open from band to band: the elements of a leaf come in row-major order either way.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence

from msgspec import Struct

from reshard.engine.decode.box_stream import Streaming, StreamPlan, plan_stream
from reshard.engine.read_digests import BATCH_BYTES, BATCH_CHUNKS
from reshard.errors import MemoryBudgetError
from reshard.formats.codecs import is_seekable
from reshard.formats.contents import StoredTensor
from reshard.geometry.grid import Box
from reshard.geometry.row_major import Cut
from reshard.geometry.sizes import format_bytes
from reshard.identity.hashes import HASH_BYTES
from reshard.identity.leaf_tree import (
    KEPT_BYTES,
    LEAF_BYTES,
    LeafTree,
    kept_level_of,
    leaves_and_cuts,
)

BLOCK_BYTES = 32 << 20
"""Size, about, of parts of a chunk that can be read alone: small enough to keep several workers busy."""

HASHER_BYTES = 4 << 10
"""Memory of an open hasher and of Python's objects beside it (measured: 2.0 KiB)."""

RESULT_BYTES = 160
"""Memory of each leaf until its block ends: a pair of its number and its hash (measured: 148 bytes)."""

CUT_BYTES = 128
"""Memory of each cut of a tree: the cut, its part's share in the number of a leaf, and its index (measured: 120 bytes)."""

MIB = 1 << 20


class LeafBlock(Struct, frozen=True):
    """A block of a tensor, and the plan by which it is streamed.

    Attributes:
        tree: of the whole tensor.
        memory_bytes: all buffers, decoders, open hashers, cuts and hashes of leaves together. Those of the whole tensor count in each of its
            blocks: they are kept until the last one ends.
    """

    tree: LeafTree
    streaming: Streaming
    plan: StreamPlan
    memory_bytes: int

    @property
    def name(self) -> str:
        return self.streaming.stored.spec.name

    @property
    def box(self) -> Box:
        return self.streaming.box

    @property
    def nbytes(self) -> int:
        return self.box.size * self.tree.itemsize


def leaf_tree_of(stored: StoredTensor) -> LeafTree:
    """The tree of a stored tensor."""
    return LeafTree.of(stored.spec.shape, stored.spec.itemsize)


def leaf_batches(
    tensors: Sequence[StoredTensor], max_memory: int, workers: int
) -> Iterator[tuple[LeafBlock, ...]]:
    """Every block of the tensors, one tensor after the other; small blocks share a batch.

    Raises MemoryBudgetError where one cannot be streamed within the budget.
    """
    batch: list[LeafBlock] = []
    nbytes = 0
    for stored in tensors:
        for block in _blocks(stored, max_memory, workers):
            batch.append(block)
            nbytes += block.nbytes
            if nbytes >= BATCH_BYTES or len(batch) >= BATCH_CHUNKS:
                yield tuple(batch)
                batch, nbytes = [], 0
    if batch:
        yield tuple(batch)


def kept_hash_bytes(tensors: Iterable[StoredTensor]) -> int:
    """The memory of the nodes that are kept of every tensor; no tree is made for it."""
    specs = [tensor.spec for tensor in tensors]
    return HASH_BYTES * sum(1 << kept_level_of(s.shape, s.itemsize, KEPT_BYTES) for s in specs)


def check_leaves_fit(tensors: Sequence[StoredTensor], max_memory: int) -> None:
    """Raises MemoryBudgetError, before anything is read, where a tensor cannot be hashed within the budget."""
    kept = kept_hash_bytes(tensors)
    for stored in tensors:
        check_tree_fits(stored, max_memory, kept)
        tree = leaf_tree_of(stored)
        for box in _largest_boxes(stored, tree):
            _planned(stored, tree, box, max_memory, kept)


def check_tree_fits(stored: StoredTensor, max_memory: int, kept: int = 0) -> None:
    """Raises MemoryBudgetError for a tree whose cuts alone are too many, before they are made: a sparse file may ask for any number."""
    leaves, cuts = leaves_and_cuts(stored.spec.shape, stored.spec.itemsize)
    if kept + CUT_BYTES * cuts > max_memory:
        needed = kept + CUT_BYTES * cuts + (HASH_BYTES + RESULT_BYTES) * leaves + LEAF_BYTES
        raise _too_little(stored, needed, max_memory)


def hashing_memory(tensors: Sequence[StoredTensor], max_memory: int, workers: int) -> int:
    """The memory that hashing takes at its worst moment; MemoryBudgetError as for ``check_leaves_fit``."""
    check_leaves_fit(tensors, max_memory)
    left = max_memory - kept_hash_bytes(tensors)
    largest = max((_largest_block(stored, left, workers) for stored in tensors), default=0)
    return min(max_memory, max_memory - left + workers * largest)


def _largest_block(stored: StoredTensor, max_memory: int, workers: int) -> int:
    tree = leaf_tree_of(stored)
    boxes = _largest_boxes(stored, tree)
    return max(_shared(stored, tree, box, max_memory, workers).memory_bytes for box in boxes)


def _largest_boxes(stored: StoredTensor, tree: LeafTree) -> tuple[Box, ...]:
    """The blocks, one of each shape, of a part as large as the largest that is read alone."""
    largest = stored.spec.storage.common(tree.grid).largest
    box = Box(tuple([0] * len(largest)), largest)
    parts = _parts(box, tree) if _may_part(stored) else (box,)
    return tuple({part.shape: part for part in parts}.values())


def block_of(stored: StoredTensor, box: Box, max_memory: int) -> LeafBlock:
    """A box that ends at edges of leaves as one block; MemoryBudgetError where it cannot be streamed within the budget."""
    return _planned(stored, leaf_tree_of(stored), box, max_memory)


def _blocks(stored: StoredTensor, max_memory: int, workers: int) -> Iterator[LeafBlock]:
    tree = leaf_tree_of(stored)
    grid = stored.spec.storage.common(tree.grid)
    if not grid.count:  # an empty tensor is one empty leaf
        yield _planned(stored, tree, Box.full(stored.spec.shape), max_memory)
    for box in grid.boxes():
        for part in _parts(box, tree) if _may_part(stored) else (box,):
            yield _shared(stored, tree, part, max_memory, workers)


def _may_part(stored: StoredTensor) -> bool:
    """True if a part of a chunk can be read alone."""
    return is_seekable(stored.encoding) and not stored.encoding.checksum


def _shared(
    stored: StoredTensor, tree: LeafTree, box: Box, max_memory: int, workers: int
) -> LeafBlock:
    """A block within a worker's share where that decodes no chunk twice, else within all of the memory."""
    try:
        within = _planned(stored, tree, box, max_memory // workers)
    except MemoryBudgetError:
        return _planned(stored, tree, box, max_memory)
    if within.plan.keeps_open or is_seekable(stored.encoding):
        return within
    return _planned(stored, tree, box, max_memory)


def _parts(box: Box, tree: LeafTree) -> Iterator[Box]:
    """A box in parts of at most about BLOCK_BYTES that end at edges of leaves; first rows, then columns."""
    if box.size * tree.itemsize <= BLOCK_BYTES:
        yield box
        return
    touched = tree.grid.overlapping(box)
    dim = next((d for d, parts in enumerate(touched) if len(parts) > 1), None)
    if dim is None:
        yield box
        return
    parts = touched[dim]
    edge = tree.grid.cuts[dim][parts[len(parts) // 2]]
    yield from _parts(_with(box, dim, box.start[dim], edge), tree)
    yield from _parts(_with(box, dim, edge, box.stop[dim]), tree)


def _with(box: Box, dim: int, start: int, stop: int) -> Box:
    return Box(
        (*box.start[:dim], start, *box.start[dim + 1 :]),
        (*box.stop[:dim], stop, *box.stop[dim + 1 :]),
    )


def _planned(
    stored: StoredTensor, tree: LeafTree, box: Box, max_memory: int, kept: int = 0
) -> LeafBlock:
    """A block; ``kept``: bytes of the budget that are taken."""
    streaming = Streaming(stored, box, stored.spec.dtype)
    in_block = math.prod(len(touched) for touched in tree.grid.overlapping(box))
    whole = HASH_BYTES * tree.leaves + CUT_BYTES * sum(map(len, tree.grid.cuts))
    beside = room = _largest_leaf(tree) + whole + RESULT_BYTES * in_block
    for _ in range(3):  # with less room bands become smaller, and more hashers may be open
        try:
            plan = plan_stream(streaming, max(0, max_memory - kept - room))
        except MemoryBudgetError as error:
            plan = plan_stream(streaming, error.smallest_bytes or max_memory)
            room = beside + HASHER_BYTES * open_leaves(tree, box, plan.cut)
            break
        room = beside + HASHER_BYTES * open_leaves(tree, box, plan.cut)
        if kept + plan.memory_bytes + room <= max_memory:
            return LeafBlock(tree, streaming, plan, plan.memory_bytes + room)
    raise _too_little(stored, kept + plan.memory_bytes + room, max_memory)


def _too_little(stored: StoredTensor, needed: int, max_memory: int) -> MemoryBudgetError:
    smallest = -(-needed // MIB)
    return MemoryBudgetError(
        f"to hash {stored.spec.name!r} takes {format_bytes(needed)}, but max_memory is {format_bytes(max_memory)}; allow "
        f"{smallest}MiB",
        smallest_bytes=smallest * MIB,
    )


def _largest_leaf(tree: LeafTree) -> int:
    return max(LEAF_BYTES, math.prod(tree.grid.largest) * tree.itemsize)


def open_leaves(tree: LeafTree, box: Box, cut: Cut) -> int:
    """The most leaves of a box that need more than one of its bands at the same time."""
    if not tree.order:
        return 1
    touched, largest = [len(r) for r in tree.grid.overlapping(box)], tree.grid.largest
    first = next((d for d in range(cut.dim) if largest[d] > 1), None)
    if first is None and largest[cut.dim] > cut.rows:
        first = cut.dim
    return 0 if first is None else math.prod(touched[first + 1 :])
