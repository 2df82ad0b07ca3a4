"""Reads a checkpoint once and hashes its leaves: TensorHashes for each tensor."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from reshard.checksums.sums import digest_text, sum_of_box
from reshard.engine.buffers import ALIGNMENT, Arena, ArenaPool
from reshard.engine.decode.box_stream import BoxStream
from reshard.engine.executor import run_tasks
from reshard.engine.limits import Limits
from reshard.engine.progress import Progress, Stage, tell_bytes
from reshard.errors import CorruptError
from reshard.formats.base import Reader
from reshard.formats.contents import StoredTensor
from reshard.geometry.dtypes import opaque_dtype
from reshard.geometry.grid import Box
from reshard.identity.hashes import HASH_BYTES, check_installed, folded, hash_of, keyed
from reshard.identity.leaf_blocks import (
    LeafBlock,
    block_of,
    check_leaves_fit,
    kept_hash_bytes,
    leaf_batches,
)
from reshard.identity.leaf_tree import KEPT_BYTES, LeafTree

if TYPE_CHECKING:
    import numpy.typing as npt

    Array = npt.NDArray[Any]

VALUE_BITS = {"int2": 2, "uint2": 2, "int4": 4, "uint4": 4, "float4_e2m1fn": 4}
"""Bits of types that are stored one to a byte; the other bits of the byte may be anything, and are hashed as zero."""


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
