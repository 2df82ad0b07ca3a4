"""Compares blocks of two tensors; chunks of both end at the edges of a block, so each block stands alone.

PairPlan: the plan to stream a box of two tensors side by side, in bands that both sides fill.

Each side is streamed as ``stream_plan`` describes: chunks that several bands need stay open, so that
each is decoded once. If the budget does not allow that for both sides, bands become larger, and chunks of one side, or
of both, are decoded again for each band. The plan that decodes least is chosen.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from reshard.checksums.tensor_digest import row_major
from reshard.engine.buffers import ALIGNMENT, Arena, ArenaPool
from reshard.engine.decode.box_stream import LEAST_BAND_BYTES, BoxStream, Streaming
from reshard.errors import MemoryBudgetError
from reshard.formats.base import Reader
from reshard.formats.codecs import is_seekable
from reshard.formats.contents import StoredTensor
from reshard.geometry.dtypes import opaque_dtype
from reshard.geometry.grid import Box, Cuts, Grid
from reshard.geometry.row_major import Cut
from reshard.planning.planner import allowed_text
from reshard.planning.task_cost import BAND_BYTES, TASK_OVERHEAD_BYTES
from reshard.verification.elements import COMPARE_BYTES, Comparing, Differences

if TYPE_CHECKING:
    from reshard.engine.buffers import Bytes


MIB = 1 << 20


class PairPlan(Struct, frozen=True):
    """The plan to stream a box of two tensors.

    Attributes:
        keeps_open: for each side, whether a chunk stays open until the last band that needs it.
        band_bytes: the largest band of both sides together.
        scratch_bytes: a buffer that both sides use in turn.
        decoded_bytes: bytes that are decoded, or read if chunks are raw, counting repetitions.
        memory_bytes: all buffers and decoders together.
    """

    cut: Cut
    keeps_open: tuple[bool, bool]
    band_bytes: int
    scratch_bytes: int
    decoded_bytes: int
    memory_bytes: int


class Pair(Struct, frozen=True):
    """One box of two tensors of the same shape."""

    a: Streaming
    b: Streaming

    @classmethod
    def of(cls, a: StoredTensor, b: StoredTensor, box: Box) -> Pair:
        """The box of both tensors, in their stored dtypes."""
        return cls(Streaming(a, box, a.spec.dtype), Streaming(b, box, b.spec.dtype))

    @property
    def sides(self) -> tuple[Streaming, Streaming]:
        return self.a, self.b

    @property
    def box(self) -> Box:
        return self.a.box

    @property
    def element_bytes(self) -> int:
        """Bytes of one element of each."""
        return self.a.stored.spec.itemsize + self.b.stored.spec.itemsize

    @property
    def nbytes(self) -> int:
        return self.box.size * self.element_bytes

    @property
    def scratch_bytes(self) -> int:
        return max(side.scratch_bytes for side in self.sides)

    @property
    def fixed_bytes(self) -> int:
        """Memory besides decoders and bands."""
        return self.scratch_bytes + COMPARE_BYTES + TASK_OVERHEAD_BYTES

    @property
    def smallest_bytes(self) -> int:
        """The smallest budget that can compare the box."""
        least = min(LEAST_BAND_BYTES, max(1, self.box.size) * self.element_bytes)
        return self.fixed_bytes + sum(s.decoder_bytes for s in self.sides) + least


def check_pairs(
    pairs: Sequence[tuple[StoredTensor, StoredTensor]], max_memory: int, metadata_bytes: int
) -> None:
    """Raises MemoryBudgetError, before anything is read, if the budget is too small for a pair."""
    needs = [Pair.of(a, b, Box.full(a.spec.shape)).smallest_bytes for a, b in pairs]
    need = max(needs, default=0)
    if need <= max_memory:
        return
    a, b = pairs[needs.index(need)]
    mib, smallest = -(-need // MIB), -(-(need + metadata_bytes) // MIB)
    raise MemoryBudgetError(
        f"to compare {a.spec.name!r} of shape {list(a.spec.shape)} needs at least {mib} MiB of buffers "
        f"({_chunks(a)} in A and {_chunks(b)} in B), but {allowed_text(max_memory, metadata_bytes)}; "
        f"allow max_memory of {smallest}MiB",
        smallest_bytes=smallest * MIB,
    )


def _chunks(stored: StoredTensor) -> str:
    shape = stored.spec.chunk_shape or stored.spec.storage.largest
    codec = "raw" if stored.encoding.compressor == "none" else stored.encoding.compressor
    return f"{codec} chunks of {'×'.join(map(str, shape)) or 'a scalar'}"


def plan_pair(pair: Pair, max_memory: int, share: int, most_open: int) -> PairPlan:
    """The plan that decodes least; within ``share`` if that needs no repetition, else within ``max_memory``.

    Args:
        share: bytes for one task when every worker has one.
        most_open: chunks that may be open at once, of both sides together.
    """
    if pair.nbytes <= BAND_BYTES:
        found = _planned(pair, (False, False), pair.nbytes, (1, 1))
        if found.memory_bytes <= max_memory:
            return found
    within = _best(pair, share, most_open)
    if within is not None and within.decoded_bytes <= pair.nbytes:
        return within
    anyhow = _best(pair, max_memory, most_open)
    if anyhow is None:
        raise ValueError(f"{pair.smallest_bytes} bytes do not fit {max_memory}")
    return anyhow


def _best(pair: Pair, max_memory: int, most_open: int) -> PairPlan | None:
    plans = (
        _within(pair, (keeps_a, keeps_b), max_memory, most_open)
        for keeps_a, keeps_b in itertools.product((True, False), repeat=2)
    )
    fitting = [plan for plan in plans if plan is not None]
    return min(fitting, key=lambda plan: (plan.decoded_bytes, plan.memory_bytes), default=None)


def _within(
    pair: Pair, keeps: tuple[bool, bool], max_memory: int, most_open: int
) -> PairPlan | None:
    small = _cut(pair, BAND_BYTES)
    # Bands end at chunk edges of either side, so chunks of the other side may extend beyond a band.
    decoders = [
        side.open_at_once(small, True) if keep else 1
        for side, keep in zip(pair.sides, keeps, strict=True)
    ]
    if any(keeps) and sum(decoders) > most_open:
        return None
    left_bytes = max_memory - _beside(pair, decoders)
    again = [side for side, keep in zip(pair.sides, keeps, strict=True) if not keep]
    most = left_bytes if any(map(_repeats, again)) else BAND_BYTES
    found = _planned(pair, keeps, min(left_bytes, most), decoders) if left_bytes > 0 else None
    return found if found is not None and found.memory_bytes <= max_memory else None


def _repeats(side: Streaming) -> bool:
    """True if opening a chunk again for each band reads or decodes it again."""
    return side.stored.encoding.checksum or not is_seekable(side.stored.encoding)


def _planned(
    pair: Pair, keeps: tuple[bool, bool], band_bytes: int, decoders: Sequence[int]
) -> PairPlan:
    cut = _cut(pair, band_bytes)
    band = cut.size(pair.box.shape) * pair.element_bytes
    decoded = sum(
        pair.box.size * side.stored.spec.itemsize * (1 if keep else _passes(side, cut))
        for side, keep in zip(pair.sides, keeps, strict=True)
    )
    return PairPlan(cut, keeps, band, pair.scratch_bytes, decoded, _beside(pair, decoders) + band)


def _cut(pair: Pair, band_bytes: int) -> Cut:
    return Cut.of(pair.box.shape, band_bytes // pair.element_bytes)


def _beside(pair: Pair, decoders: Sequence[int]) -> int:
    sizes = (n * side.decoder_bytes for n, side in zip(decoders, pair.sides, strict=True))
    return pair.fixed_bytes + sum(sizes)


def _passes(side: Streaming, cut: Cut) -> int:
    """Most times that a chunk is decoded or read when each band opens it again."""
    shape = side.box.shape
    if cut.size(shape) >= side.box.size:
        return 1
    part = list(map(min, side.stored.spec.storage.largest, shape))
    is_aligned = part[cut.dim] == shape[cut.dim]
    bands = math.prod(part[: cut.dim]) * (-(-part[cut.dim] // cut.rows) + (not is_aligned))
    if not is_seekable(side.stored.encoding):
        return bands
    return 2 if bands > 1 and side.stored.encoding.checksum else 1


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
