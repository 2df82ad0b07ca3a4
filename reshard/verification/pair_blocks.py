"""Compares blocks of two tensors; chunks of both end at the edges of a block, so each block stands alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from reshard.checksums.tensor_digest import row_major
from reshard.engine.buffers import ALIGNMENT, Arena, ArenaPool
from reshard.engine.decode.box_stream import BoxStream
from reshard.formats.base import Reader
from reshard.formats.contents import StoredTensor
from reshard.geometry.dtypes import opaque_dtype
from reshard.geometry.grid import Box, Cuts, Grid
from reshard.verification.elements import Comparing, Differences
from reshard.verification.pair_plan import Pair, PairPlan

if TYPE_CHECKING:
    from reshard.engine.buffers import Bytes


class TensorPair(Struct, frozen=True):
    """Two stored tensors of one shape.

    Attributes:
        blocks: the grid of the chunk edges that both share.
        edges: all chunk edges of both, for each dimension.
    """

    a: StoredTensor
    b: StoredTensor
    comparing: Comparing
    blocks: Grid
    edges: tuple[Cuts, ...]

    @classmethod
    def of(cls, a: StoredTensor, b: StoredTensor) -> TensorPair:
        one, other = a.spec.storage, b.spec.storage
        comparing = Comparing.of(a.spec.dtype, b.spec.dtype, is_key=a.is_key)
        return cls(a, b, comparing, one.common(other), one.refine(other).cuts)

    @property
    def nbytes(self) -> int:
        """Decoded bytes of both."""
        return self.a.spec.nbytes + self.b.spec.nbytes


class PairBlock(Struct, frozen=True):
    """A block of tensor pair ``number``, and its plan."""

    number: int
    pair: Pair
    plan: PairPlan


def compare_blocks(
    blocks: Sequence[PairBlock],
    matched: Sequence[TensorPair],
    readers: tuple[Reader, Reader],
    pool: ArenaPool,
) -> list[tuple[PairBlock, Differences]]:
    """The differences of each block; blocks are compared one after another."""
    nbytes = max(_buffer_bytes(block.plan) for block in blocks)
    beside = max(block.plan.memory_bytes for block in blocks) - nbytes
    arena = pool.acquire(nbytes, max(0, beside))
    try:
        return [
            (block, _compared(block, matched[block.number], readers, arena)) for block in blocks
        ]
    finally:
        pool.release(arena)


def _buffer_bytes(plan: PairPlan) -> int:
    return plan.band_bytes + plan.scratch_bytes + 3 * ALIGNMENT


def _compared(
    block: PairBlock, matched: TensorPair, readers: tuple[Reader, Reader], arena: Arena
) -> Differences:
    arena.reset()
    found = Differences()
    for band, a, b in _bands(block, matched, readers, arena):
        differences = matched.comparing.elements(a, b)
        if differences.at is not None:
            differences = replace(differences, at=_number(differences.at, band, matched))
        found = found + differences
    return found


def _bands(
    block: PairBlock, matched: TensorPair, readers: tuple[Reader, Reader], arena: Arena
) -> Iterator[tuple[Box, Bytes, Bytes]]:
    """Every band of the block, and its elements on both sides, row-major."""
    pair, plan = block.pair, block.plan
    scratch = arena.take(plan.scratch_bytes)
    most = plan.cut.size(pair.box.shape)
    memories = [arena.take(most * side.stored.spec.itemsize) for side in pair.sides]
    with ExitStack() as stack:
        streams = [
            stack.enter_context(BoxStream(reader, side, scratch, keeps_open=keeps, checks_all=True))
            for reader, side, keeps in zip(readers, pair.sides, plan.keeps_open, strict=True)
        ]
        for band in plan.cut.bands(pair.box, matched.edges):
            filled = []
            for stream, side, memory in zip(streams, pair.sides, memories, strict=True):
                itemsize = side.stored.spec.itemsize
                elements = memory[: band.size * itemsize]
                stream.fill(elements.view(opaque_dtype(itemsize)).reshape(band.shape), band)
                filled.append(elements)
            yield band, filled[0], filled[1]


def _number(at: int, band: Box, matched: TensorPair) -> int:
    """The row-major number within the tensor of element ``at`` of a band."""
    around = row_major(matched.a.spec.shape, 1)
    return sum(
        (start + at // step % size) * stride
        for start, size, step, stride in zip(
            band.start, band.shape, row_major(band.shape, 1), around, strict=True
        )
    )
