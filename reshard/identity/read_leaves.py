"""Reads a checkpoint once, block by block, and hashes its leaves: TensorHashes for each tensor.

A block ends at edges of chunks too, unless a part of a chunk can be read alone. It is streamed in bands. Where a band has less than a
row of leaves, their hashers stay open from band to band: the elements of a leaf come in row-major order either way.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from reshard.checksums.sums import digest_text, sum_of_box
from reshard.engine.buffers import ALIGNMENT, Arena, ArenaPool
from reshard.engine.decode.box_stream import BoxStream, Streaming, StreamPlan, plan_stream
from reshard.engine.executor import run_tasks
from reshard.engine.limits import Limits
from reshard.engine.progress import Progress, Stage, tell_bytes
from reshard.engine.read_digests import BATCH_BYTES, BATCH_CHUNKS
from reshard.errors import CorruptError, MemoryBudgetError
from reshard.formats.base import Reader
from reshard.formats.codecs import is_seekable
from reshard.formats.contents import StoredTensor
from reshard.geometry.dtypes import VALUE_BITS, opaque_dtype
from reshard.geometry.grid import Box
from reshard.geometry.row_major import Cut
from reshard.geometry.sizes import format_bytes
from reshard.identity.leaf_tree import (
    HASH_BYTES,
    KEPT_BYTES,
    LEAF_BYTES,
    LeafTree,
    check_installed,
    folded,
    hash_of,
    kept_level_of,
    keyed,
    leaves_and_cuts,
)

if TYPE_CHECKING:
    import numpy.typing as npt

    Array = npt.NDArray[Any]


class TensorHashes(Struct, frozen=True):
    """The hashes of one tensor.

    Attributes:
        nodes: of ``LeafTree.kept_level``, from the left.
        crc: CRC-64/NVME of the row-major bytes, 16 hex digits.
    """

    nodes: bytes
    crc: str

    @property
    def top(self) -> bytes:
        """The hash of the whole tensor."""
        return folded(self.nodes, 0)


class _Leaves(Struct):
    """The leaves of a tensor that are hashed so far.

    Attributes:
        left: the number of those that are not.
    """

    tree: LeafTree
    hashes: bytearray
    left: int
    crc: int = 0

    @classmethod
    def of(cls, tree: LeafTree) -> _Leaves:
        return cls(tree, bytearray(HASH_BYTES * tree.leaves), tree.leaves)

    def add(self, found: _BlockHashes) -> None:
        self.crc ^= found.crc
        self.left -= len(found.leaves)
        for number, leaf in found.leaves:
            self.hashes[number * HASH_BYTES : (number + 1) * HASH_BYTES] = leaf

    def finished(self, nbytes: int) -> TensorHashes:
        """Folds the leaves below one kept node after the other, to avoid a second list of all."""
        kept = 1 << self.tree.kept_level(KEPT_BYTES)
        step, hashes = len(self.hashes) // kept, memoryview(self.hashes)
        below = (bytes(hashes[at : at + step]) for at in range(0, len(hashes), step))
        return TensorHashes(
            b"".join([folded(each, 0) for each in below]), digest_text(self.crc, nbytes)
        )


class _BlockHashes(Struct, frozen=True):
    """Number and hash of each leaf of a block, and the block's share in the tensor's digest."""

    block: LeafBlock
    leaves: Sequence[tuple[int, bytes]]
    crc: int


def tensor_hashes(
    reader: Reader,
    limits: Limits,
    progress: Callable[[Progress], None] | None = None,
    stage: Stage = "reading",
) -> dict[str, TensorHashes]:
    """The hashes of every tensor, by name; each chunk is decoded once where the budget allows it.

    Raises CorruptError, naming the tensor, where a chunk does not decode, a bool is neither 0 nor 1, or a tensor has
    another digest than the checkpoint records; MemoryBudgetError, before anything is read, where ``max_memory`` is too small.
    """
    tensors = list(reader.tensors.values())
    check_installed()
    check_leaves_fit(tensors, limits.max_memory)
    tell = tell_bytes(sum(t.spec.nbytes for t in tensors), stage, progress)
    open_tensors: dict[str, _Leaves] = {}
    found: dict[str, TensorHashes] = {}
    with closing(_results(reader, tensors, limits)) as results:
        for result in results:
            name = result.block.name
            leaves = open_tensors.get(name) or _Leaves.of(result.block.tree)
            open_tensors[name] = leaves
            leaves.add(result)
            if not leaves.left:
                found[name] = leaves.finished(reader.tensors[name].spec.nbytes)
                del open_tensors[name]
            tell(name, result.block.nbytes)
    _check_recorded(reader, found)
    return {name: found[name] for name in reader.tensors}


def leaves_of_box(
    reader: Reader, stored: StoredTensor, box: Box, max_memory: int
) -> dict[int, bytes]:
    """The hash of each leaf of a box that ends at edges of leaves, by number; errors as for ``tensor_hashes``."""
    block = block_of(stored, box, max_memory)
    (found,) = _hash_blocks([block], reader, ArenaPool(max_memory, 1))
    return dict(found.leaves)


def _results(
    reader: Reader, tensors: Sequence[StoredTensor], limits: Limits
) -> Generator[_BlockHashes, None, None]:
    max_memory = limits.max_memory - kept_hash_bytes(tensors)
    pool = ArenaPool(max_memory, limits.workers)
    work = partial(_hash_blocks, reader=reader, pool=pool)
    batches = leaf_batches(tensors, max_memory, limits.workers)
    with closing(run_tasks(batches, work, _memory_of, max_memory, limits.workers)) as ended:
        for results in ended:
            yield from results


def _memory_of(batch: Sequence[LeafBlock]) -> int:
    """The memory of its largest block: a task hashes one after the other."""
    return max(block.memory_bytes for block in batch)


def _check_recorded(reader: Reader, found: Mapping[str, TensorHashes]) -> None:
    for name, stored in reader.tensors.items():
        if stored.digest and stored.digest != found[name].crc:
            raise CorruptError(
                f"{name!r} in {reader.uri!r} has digest {found[name].crc}, but {stored.digest} was recorded when it was "
                "written: its bytes changed since; restore it from another copy"
            )


def _hash_blocks(batch: Sequence[LeafBlock], reader: Reader, pool: ArenaPool) -> list[_BlockHashes]:
    nbytes = max(_buffer_bytes(block) for block in batch)
    arena = pool.acquire(nbytes, max(0, _memory_of(batch) - nbytes))
    try:
        return [_hash_block(block, reader, arena) for block in batch]
    finally:
        pool.release(arena)


def _buffer_bytes(block: LeafBlock) -> int:
    band = block.plan.cut.size(block.box.shape) * block.tree.itemsize
    return band + block.plan.scratch_bytes + 2 * ALIGNMENT


def _hash_block(block: LeafBlock, reader: Reader, arena: Arena) -> _BlockHashes:
    arena.reset()
    streaming, itemsize = block.streaming, block.tree.itemsize
    scratch = arena.take(block.plan.scratch_bytes)
    memory = arena.take(block.plan.cut.size(block.box.shape) * itemsize)
    hashing, crc = LeafHashing(block.tree), 0
    dtype = streaming.stored.spec.dtype
    with BoxStream(
        reader, streaming, scratch, keeps_open=block.plan.keeps_open, checks_all=True
    ) as stream:
        for band in _bands(block):
            kind = opaque_dtype(itemsize)
            elements = memory[: band.size * itemsize].view(kind).reshape(band.shape)
            stream.fill(elements, band)
            crc ^= sum_of_box(elements, band, block.tree.shape)
            hashing.add(as_hashed(block.name, elements, dtype), band)
    return _BlockHashes(block, hashing.finished(), crc)


def _bands(block: LeafBlock) -> Iterator[Box]:
    """The bands of a block, which end at edges of leaves where they can; of an empty tensor one."""
    if not block.box.size:
        return iter([block.box])
    return block.plan.cut.bands(block.box, block.tree.grid.cuts)


def as_hashed(name: str, elements: Array, dtype: str) -> Array:
    """Elements with the bits that count; changes them in place.

    Raises CorruptError for a bool that is neither 0 nor 1: programs disagree on its meaning.
    """
    if dtype in VALUE_BITS:
        elements &= (1 << VALUE_BITS[dtype]) - 1
    if dtype == "bool" and elements.size and elements.max() > 1:
        raise CorruptError(
            f"{name!r} has a bool with the byte {int(elements.max())}; expected 0 or 1; write it anew from the program "
            "that made it"
        )
    return elements


class LeafHashing:
    """Hashes leaves from bands of elements; those of each leaf come in row-major order."""

    def __init__(self, tree: LeafTree) -> None:
        self._tree = tree
        self._open: dict[int, Any] = {}
        self._done: list[tuple[int, bytes]] = []

    def add(self, elements: Array, band: Box) -> None:
        """Takes the elements of a band: whole leaves, or the next elements of open ones."""
        for spans in self._tree.in_band(band):
            number = sum([span.place for span in spans])
            data = elements[tuple([span.part for span in spans])].tobytes()
            ends = all(span.ends for span in spans)
            if ends and all(span.begins for span in spans):
                self._done.append((number, hash_of("leaf", data)))
            else:
                self._go_on(number, data, ends=ends)

    def _go_on(self, number: int, data: bytes, *, ends: bool) -> None:
        hasher = self._open.pop(number, None) or keyed("leaf")
        hasher.update(data)
        if ends:
            self._done.append((number, hasher.digest()))
        else:
            self._open[number] = hasher

    def finished(self) -> list[tuple[int, bytes]]:
        """Number and hash of each leaf. ValueError where one is not complete."""
        if self._open:
            raise ValueError(f"leaves {sorted(self._open)} are not complete")
        return self._done


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
    largest_leaf = max(LEAF_BYTES, math.prod(tree.grid.largest) * tree.itemsize)
    beside = room = largest_leaf + whole + RESULT_BYTES * in_block
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


def open_leaves(tree: LeafTree, box: Box, cut: Cut) -> int:
    """The most leaves of a box that need more than one of its bands at the same time."""
    if not tree.order:
        return 1
    touched, largest = [len(r) for r in tree.grid.overlapping(box)], tree.grid.largest
    first = next((d for d in range(cut.dim) if largest[d] > 1), None)
    if first is None and largest[cut.dim] > cut.rows:
        first = cut.dim
    return 0 if first is None else math.prod(touched[first + 1 :])
