"""StoredBox: a box of a stored tensor to be read. BoxPlan: the buffers with which boxes are read in bands, within a memory budget.

A band is the part of a box that is in memory at once. Chunks that lie side by side in later dimensions stay open from band to band,
so that each is read once::

    chunks (2 x 4)    a b c d      a band is some rows of a, b, c and d, which are all open;
                      e f g h      when it reaches the edge, they are closed and e to h opened

If these do not fit the budget, bands become as large as it allows, and a compressed chunk that
does not end within one is decoded again for the next. Raw chunks are read by ranges either way.

A box within one chunk may be decoded at once, where that is quicker and fits.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from itertools import pairwise

from msgspec import Struct

from reshard.engine.buffers import ALIGNMENT
from reshard.errors import MemoryBudgetError
from reshard.formats.codecs import decoder_bytes, encoded_room, is_seekable
from reshard.formats.contents import Encoding, SourceChunk, StoredTensor
from reshard.geometry.dtypes import storage_bytes
from reshard.geometry.grid import Box, Cuts
from reshard.geometry.row_major import MIN_RUN_BYTES, Cut, run_elements
from reshard.geometry.sizes import format_bytes
from reshard.planning.task_cost import (
    AT_ONCE_BYTES,
    BAND_BYTES,
    CAST_SCRATCH_BYTES,
    RECORD_BYTES,
    TASK_OVERHEAD_BYTES,
)

MIB = 1 << 20
MOST_OPEN = 256
"""The most chunks that are open at once; each may be a file, and a process may open 1024."""

LEAST_BAND_BYTES = 64 << 10
"""Below this, calls cost more than bytes (as ``SMALLEST_BAND_BYTES`` of a conversion)."""

COPIES = 2
"""Copies of a band in memory: it is assembled, and handed over as separate bytes."""


class StoredBox(Struct, frozen=True):
    """A box of a stored tensor that is read in a dtype.

    Attributes:
        chunk: the only chunk with elements of the box, where it is located beforehand: a process of an executor has no reader.
    """

    stored: StoredTensor
    box: Box
    dtype: str
    saturate: bool = False
    chunk: SourceChunk | None = None

    @classmethod
    def of(cls, stored: StoredTensor, box: Box) -> StoredBox:
        """A box in its stored dtype."""
        return cls(stored, box, stored.spec.dtype)

    @classmethod
    def whole(cls, stored: StoredTensor) -> StoredBox:
        """All of a tensor, in its stored dtype."""
        return cls.of(stored, Box.full(stored.spec.shape))

    @property
    def is_cast(self) -> bool:
        return self.dtype != self.stored.spec.dtype

    @property
    def itemsize(self) -> int:
        """Bytes of one element as it is read."""
        return storage_bytes(self.dtype)

    @property
    def nbytes(self) -> int:
        """Bytes of the box as it is read."""
        return self.box.size * self.itemsize

    @property
    def decoder_bytes(self) -> int:
        return decoder_bytes(self.stored.encoding, self.stored.spec.chunk_bytes) + RECORD_BYTES

    @property
    def scratch_bytes(self) -> int:
        return max(self.stored.spec.itemsize, min(BAND_BYTES, self.stored.spec.chunk_bytes))

    @property
    def repeats(self) -> bool:
        """True if opening a chunk again for each band reads or decodes it again."""
        return self.stored.encoding.checksum or not is_seekable(self.stored.encoding)

    def open_at_once(self, cut: Cut, *, is_part: bool) -> int:
        """The largest number of chunks that more than one band needs at the same time.

        Args:
            is_part: bands begin and end anywhere, not only at the edges of this side's chunks.
        """
        cuts = self.stored.spec.storage.cuts
        sides = zip(cuts, self.box.start, self.box.stop, strict=True)
        spans = [_extents(c, a, b) for c, a, b in sides]
        again = (d for d, (_, most) in enumerate(spans) if most > 1 and (is_part or d < cut.dim))
        first = next(again, None)
        if first is None and spans and spans[cut.dim][1] > cut.rows:
            first = cut.dim
        return 1 if first is None else math.prod(count for count, _ in spans[first + 1 :])

    def passes(self, cut: Cut) -> int:
        """The most times that a chunk is decoded or read when each band opens it again."""
        shape, encoding = self.box.shape, self.stored.encoding
        if cut.size(shape) >= self.box.size:
            return 1
        part = list(map(min, self.stored.spec.storage.largest, shape))
        is_aligned = part[cut.dim] == shape[cut.dim]
        bands = math.prod(part[: cut.dim]) * (-(-part[cut.dim] // cut.rows) + (not is_aligned))
        if not is_seekable(encoding):
            return bands
        return 2 if bands > 1 and encoding.checksum else 1


def _extents(cuts: Cuts, start: int, stop: int) -> tuple[int, int]:
    """The number of chunks that ``start:stop`` touches along a dimension, and the largest extent that it wants of one."""
    inner = [start, *(c for c in cuts if start < c < stop), stop]
    most = max(b - a for a, b in pairwise(inner))
    return len(inner) - 1, most


class BoxPlan(Struct, frozen=True):
    """The bands and the buffers with which boxes of one shape are read side by side.

    Attributes:
        keeps_open: for each side, whether a chunk stays open until the last band that needs it.
        band_bytes: memory of each side for a band, or for the whole chunk if it is decoded at once.
        scratch_bytes: a buffer that all sides use in turn, for elements that are read but not wanted, or not wanted unchanged.
        encoded_bytes: for the encoded bytes of a chunk that is decoded at once; 0 for a stream.
        memory_bytes: all buffers and decoders together.
        decoded_bytes: bytes that are decoded, or read if chunks are raw, counting repetitions.
    """

    cut: Cut
    keeps_open: tuple[bool, ...]
    band_bytes: tuple[int, ...]
    scratch_bytes: int
    memory_bytes: int
    decoded_bytes: int = 0
    encoded_bytes: int = 0

    @property
    def buffer_bytes(self) -> int:
        """Bytes of an arena with all buffers."""
        buffers = (self.scratch_bytes, self.encoded_bytes, *self.band_bytes)
        return sum(-(-nbytes // ALIGNMENT) * ALIGNMENT for nbytes in buffers)


def plan_box(side: StoredBox, max_memory: int, *, is_part: bool = False) -> BoxPlan:
    """The plan to read one box; MemoryBudgetError if not even one chunk and a small band fit.

    Args:
        is_part: only a stretch of the box is read; its bands begin and end anywhere.
    """
    if (small := _in_one_band([side], max_memory, COPIES)) is not None and not is_part:
        return small
    for keeps in (True, False):
        if found := _within([side], (keeps,), max_memory, MOST_OPEN, COPIES, is_part=is_part):
            return found
    least = COPIES * min(LEAST_BAND_BYTES, max(1, side.box.size) * side.itemsize)
    smallest = _beside([side], (1,)) + least
    mib = -(-smallest // MIB)
    raise MemoryBudgetError(
        f"to stream {side.stored.spec.name!r} takes {format_bytes(smallest)} to decode a chunk "
        f"({side.stored.encoding.compressor}) and hold a band of it, but max_memory is {format_bytes(max_memory)}; "
        f"allow {mib}MiB",
        smallest_bytes=mib * MIB,
    )


def least_bytes(sides: Sequence[StoredBox]) -> int:
    """The smallest budget of ``plan_boxes``."""
    least = min(LEAST_BAND_BYTES, sum(max(1, side.box.size) * side.itemsize for side in sides))
    return _beside(sides, [1] * len(sides)) + least


def plan_boxes(sides: Sequence[StoredBox], max_memory: int, share: int, most_open: int) -> BoxPlan:
    """The plan that decodes least; within ``share`` if that needs no repetition, else within ``max_memory``.

    Args:
        sides: boxes of one shape, in their stored dtypes.
        share: bytes for one task when every worker has one.
        most_open: chunks that may be open at once, of all sides together.
    """
    if (small := _in_one_band(sides, max_memory)) is not None:
        return small
    nbytes = sum(side.nbytes for side in sides)
    within = _best(sides, share, most_open)
    if within is not None and within.decoded_bytes <= nbytes:
        return within
    anyhow = _best(sides, max_memory, most_open)
    if anyhow is None:
        raise ValueError(f"{least_bytes(sides)} bytes do not fit {max_memory}")
    return anyhow


def _in_one_band(sides: Sequence[StoredBox], max_memory: int, copies: int = 1) -> BoxPlan | None:
    """The plan for small boxes, of which no chunk stays open; None unless they are small, and fit."""
    nbytes = sum([side.nbytes for side in sides])
    if nbytes > BAND_BYTES:
        return None
    found = _planned(sides, [False] * len(sides), nbytes, [1] * len(sides), copies)
    return found if found.memory_bytes <= max_memory else None


def _best(sides: Sequence[StoredBox], max_memory: int, most_open: int) -> BoxPlan | None:
    kept = itertools.product((True, False), repeat=len(sides))
    plans = (_within(sides, each, max_memory, most_open, is_part=True) for each in kept)
    fitting = [plan for plan in plans if plan is not None]
    return min(fitting, key=lambda plan: (plan.decoded_bytes, plan.memory_bytes), default=None)


def _within(
    sides: Sequence[StoredBox],
    keeps: Sequence[bool],
    max_memory: int,
    most_open: int,
    copies: int = 1,
    *,
    is_part: bool,
) -> BoxPlan | None:
    """The plan with the largest useful bands; None if it does not fit, or has too many chunks open."""
    small = _cut(sides, BAND_BYTES)
    # Bands may end at chunk edges of another side, so that chunks of this side extend beyond a band.
    decoders = [
        side.open_at_once(small, is_part=is_part) if keep else 1
        for side, keep in zip(sides, keeps, strict=True)
    ]
    if any(keeps) and sum(decoders) > most_open:
        return None
    left = (max_memory - _beside(sides, decoders)) // copies
    least = min(LEAST_BAND_BYTES, sum(max(1, side.box.size) * side.itemsize for side in sides))
    if left < least:
        return None
    repeats = any(side.repeats for side, keep in zip(sides, keeps, strict=True) if not keep)
    found = _planned(sides, keeps, left if repeats else min(left, BAND_BYTES), decoders, copies)
    return found if found.memory_bytes <= max_memory else None


def _planned(
    sides: Sequence[StoredBox],
    keeps: Sequence[bool],
    band_bytes: int,
    decoders: Sequence[int],
    copies: int = 1,
) -> BoxPlan:
    cut, shape = _cut(sides, band_bytes), sides[0].box.shape
    bands = tuple(cut.size(shape) * side.itemsize for side in sides)
    decoded = sum(
        side.box.size * side.stored.spec.itemsize * (1 if keep else side.passes(cut))
        for side, keep in zip(sides, keeps, strict=True)
    )
    scratch = max(side.scratch_bytes for side in sides)
    memory = _beside(sides, decoders) + copies * sum(bands)
    return BoxPlan(cut, tuple(keeps), bands, scratch, memory, decoded)


def _cut(sides: Sequence[StoredBox], band_bytes: int) -> Cut:
    return Cut.of(sides[0].box.shape, band_bytes // sum(side.itemsize for side in sides))


def _beside(sides: Sequence[StoredBox], decoders: Sequence[int]) -> int:
    """Memory of so many decoders of each side, and of everything else but bands."""
    open_bytes = sum(n * side.decoder_bytes for n, side in zip(decoders, sides, strict=True))
    cast = CAST_SCRATCH_BYTES if any(side.is_cast for side in sides) else 0
    scratch = max(side.scratch_bytes for side in sides)
    return open_bytes + scratch + TASK_OVERHEAD_BYTES + cast


class ChunkMemory(Struct, frozen=True):
    """Bytes that decoding one chunk takes.

    Attributes:
        decoded: for a band, or for the whole chunk if it is decoded at once.
        encoded: for the encoded bytes of a chunk that is decoded at once; 0 for a stream.
        beside: for the decoder, casts and small objects.
    """

    decoded: int
    encoded: int
    beside: int

    @property
    def is_at_once(self) -> bool:
        return self.encoded > 0

    @property
    def total(self) -> int:
        return -(-self.decoded // ALIGNMENT) * ALIGNMENT + self.encoded + self.beside

    def plan(self, chunk: SourceChunk, wanted: Box, encoding: Encoding, itemsize: int) -> BoxPlan:
        """The plan to read a box of a chunk with this memory."""
        # A stream would be read to its end anyway. A chunk that is not stored passes in bands.
        is_last = wanted.stop[:1] == chunk.box.stop[:1]
        around = wanted.shape
        if self.is_at_once and is_last and chunk.extent is not None:
            cut = Cut.of(around, max(1, wanted.size))
            return BoxPlan(cut, (True,), (self.decoded,), 0, self.total, 0, self.encoded)
        if not is_exact(wanted, chunk, encoding, itemsize):
            around = chunk.stored_shape  # the elements between its rows are in the band, too
        cut = Cut.of(around, self.decoded // itemsize)
        return BoxPlan(cut, (True,), (self.decoded,), 0, self.total)


def is_exact(wanted: Box, chunk: SourceChunk, encoding: Encoding, itemsize: int) -> bool:
    """True if only the bytes of a box are read: it is a part of a raw chunk, and is one run or has long ones."""
    if chunk.extent is None or wanted == chunk.box or not is_seekable(encoding):
        return False
    run = run_elements(wanted.shape, chunk.stored_shape)
    return run == wanted.size or run * itemsize >= MIN_RUN_BYTES


def stream_memory(encoding: Encoding, chunk_bytes: int, *, is_cast: bool = False) -> ChunkMemory:
    """The memory to decode chunks of at most ``chunk_bytes`` in a stream."""
    cast = CAST_SCRATCH_BYTES if is_cast else 0
    beside = decoder_bytes(encoding, chunk_bytes) + TASK_OVERHEAD_BYTES + cast
    return ChunkMemory(min(chunk_bytes, BAND_BYTES), 0, beside)


def quickest_memory(
    encoding: Encoding, chunk_bytes: int, most_bytes: int, *, is_cast: bool = False
) -> ChunkMemory:
    """The memory to decode them at once if that is quicker and takes at most ``most_bytes``; else in a stream."""
    streamed = stream_memory(encoding, chunk_bytes, is_cast=is_cast)
    room = encoded_room(encoding, chunk_bytes)
    at_once = ChunkMemory(chunk_bytes, room, streamed.beside)
    gains = room > 0 and chunk_bytes <= AT_ONCE_BYTES
    return at_once if gains and at_once.total <= most_bytes else streamed
