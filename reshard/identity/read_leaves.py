"""Reads a checkpoint once, block by block, and hashes its leaves: TensorHashes for each tensor.

A block ends at edges of chunks too, unless a part of a chunk can be read alone. It is streamed in bands. Where a band has less than a
row of leaves, their hashers stay open from band to band: the elements of a leaf come in row-major order either way.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from reshard.checksums.sums import digest_text, sum_of_box
from reshard.engine.decode.box_plan import StoredBox, plan_box
from reshard.engine.limits import Limits
from reshard.engine.progress import Progress, Stage, tell_bytes
from reshard.engine.read_boxes import BoxBatch, BoxUnit, Sources, batched, read_batch, read_boxes
from reshard.errors import CorruptError, MemoryBudgetError
from reshard.formats.base import Reader
from reshard.formats.codecs import is_seekable
from reshard.formats.contents import StoredTensor
from reshard.geometry.dtypes import VALUE_BITS
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


class LeafSink:
    """Hashes the leaves of a block, and sums up its share in the tensor's digest (a ``BandSink``)."""

    is_dense = False

    def __init__(self, unit: BoxUnit[LeafTree]) -> None:
        (side,) = unit.sides
        self._side = side
        self._tree = unit.of
        self._hashing = LeafHashing(unit.of)
        self._crc = 0

    def direct(self, _: Box) -> None:
        """None, since it keeps no elements."""

    def take(self, band: Box, *elements: Array) -> None:
        """Sums up a band as it is stored, and hashes the bits that count."""
        (found,), spec = elements, self._side.stored.spec
        self._crc ^= sum_of_box(found, band, self._tree.shape)
        self._hashing.add(as_hashed(spec.name, found, spec.dtype), band)

    def done(self) -> _BlockHashes:
        """The hashes of the block."""
        return _BlockHashes(self._hashing.finished(), self._crc)


class _BlockHashes(Struct, frozen=True):
    """Number and hash of each leaf of a block, and the block's share in the tensor's digest."""

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
    left = Limits(limits.max_memory - kept_hash_bytes(tensors), limits.workers)
    batches = batched(leaf_blocks(tensors, left.max_memory, left.workers))
    with closing(read_boxes(batches, LeafSink, [reader], left)) as ended:
        for done in itertools.chain.from_iterable(ended):
            spec = done.unit.sides[0].stored.spec
            leaves = open_tensors.get(spec.name) or _Leaves.of(done.unit.of)
            open_tensors[spec.name] = leaves
            leaves.add(done.result)
            if not leaves.left:
                found[spec.name] = leaves.finished(spec.nbytes)
                del open_tensors[spec.name]
            tell(spec.name, done.unit.nbytes)
    _check_recorded(reader, found)
    return {name: found[name] for name in reader.tensors}


def leaves_of_box(
    reader: Reader, stored: StoredTensor, box: Box, max_memory: int
) -> dict[int, bytes]:
    """The hash of each leaf of a box that ends at edges of leaves, by number; errors as for ``tensor_hashes``."""
    block = _planned(stored, leaf_tree_of(stored), box, max_memory)
    (done,) = read_batch(BoxBatch((block,), block.memory_bytes), LeafSink, Sources([reader]))
    return dict(done.result.leaves)


def _check_recorded(reader: Reader, found: Mapping[str, TensorHashes]) -> None:
    for name, stored in reader.tensors.items():
        if stored.digest and stored.digest != found[name].crc:
            raise CorruptError(
                f"{name!r} in {reader.uri!r} has digest {found[name].crc}, but {stored.digest} was recorded when it was "
                "written: its bytes changed since; restore it from another copy"
            )


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


def leaf_tree_of(stored: StoredTensor) -> LeafTree:
    """The tree of a stored tensor."""
    return LeafTree.of(stored.spec.shape, stored.spec.itemsize)


def leaf_blocks(
    tensors: Sequence[StoredTensor], max_memory: int, workers: int
) -> Iterator[BoxUnit[LeafTree]]:
    """Every block of the tensors; MemoryBudgetError where one cannot be read within the budget."""
    for stored in tensors:
        yield from _blocks(stored, max_memory, workers)


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


def _blocks(stored: StoredTensor, max_memory: int, workers: int) -> Iterator[BoxUnit[LeafTree]]:
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
) -> BoxUnit[LeafTree]:
    """A block within a worker's share where that decodes no chunk twice, else within all of the memory."""
    try:
        within = _planned(stored, tree, box, max_memory // workers)
    except MemoryBudgetError:
        return _planned(stored, tree, box, max_memory)
    if within.plan.keeps_open[0] or is_seekable(stored.encoding):
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
) -> BoxUnit[LeafTree]:
    """A block, with the hashers that are open at once; ``kept``: bytes of the budget that are taken.

    The hashes of the whole tensor count in each of its blocks: they are kept until the last one ends.
    """
    side = StoredBox.of(stored, box)
    in_block = math.prod(len(touched) for touched in tree.grid.overlapping(box))
    whole = HASH_BYTES * tree.leaves + CUT_BYTES * sum(map(len, tree.grid.cuts))
    largest_leaf = max(LEAF_BYTES, math.prod(tree.grid.largest) * tree.itemsize)
    beside = room = largest_leaf + whole + RESULT_BYTES * in_block
    for _ in range(3):  # with less room bands become smaller, and more hashers may be open
        try:
            plan = plan_box(side, max(0, max_memory - kept - room))
        except MemoryBudgetError as error:
            plan = plan_box(side, error.smallest_bytes or max_memory)
            room = beside + HASHER_BYTES * open_leaves(tree, box, plan.cut)
            break
        room = beside + HASHER_BYTES * open_leaves(tree, box, plan.cut)
        if kept + plan.memory_bytes + room <= max_memory:
            edges = tree.grid.cuts  # bands end at edges of leaves where they can
            return BoxUnit(tree, (side,), plan, edges, side.nbytes, plan.memory_bytes + room)
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
