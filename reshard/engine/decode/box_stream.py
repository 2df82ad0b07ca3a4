"""BoxStream: a box of a stored tensor streamed in row-major order within a memory budget.

Bands of the box are assembled one after another along one dimension. Chunks that lie side by side in later
dimensions stay open from band to band, so that each is read once::

    chunks (2 x 4)    a b c d      a band is some rows of a, b, c and d, which are all open;
                      e f g h      when it reaches the edge, they are closed and e to h opened

If these do not fit the budget, bands become as large as it allows, and a compressed chunk that
does not end within one is decoded again for the next. Raw chunks are read by ranges either way.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from contextlib import ExitStack
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from reshard.engine.cast import cast_into
from reshard.engine.decode.chunk_reader import ChunkReader, StoredChunks
from reshard.engine.task import CastStats, SourceChunk
from reshard.errors import MemoryBudgetError
from reshard.formats.base import Reader
from reshard.formats.codecs import decoder_bytes, is_seekable
from reshard.formats.contents import StoredTensor
from reshard.geometry.dtypes import element_dtype, storage_bytes
from reshard.geometry.grid import Box, Cuts, Index
from reshard.geometry.row_major import Cut, pieces, run_elements
from reshard.geometry.sizes import format_bytes
from reshard.planning.task_cost import (
    BAND_BYTES,
    CAST_SCRATCH_BYTES,
    RECORD_BYTES,
    TASK_OVERHEAD_BYTES,
)

if TYPE_CHECKING:
    import numpy.typing as npt

    from reshard.engine.buffers import Bytes

    Array = npt.NDArray[Any]


MIB = 1 << 20
MOST_OPEN = 256
"""The most chunks that are open at once; each may be a file, and a process may open 1024."""

LEAST_BAND_BYTES = 64 << 10
"""Below this, calls cost more than bytes (as ``SMALLEST_BAND_BYTES`` of a conversion)."""

COPIES = 2
"""Copies of a band in memory: it is assembled, and handed over as separate bytes."""


class StreamPlan(Struct, frozen=True):
    """The buffers with which a box is streamed.

    Attributes:
        keeps_open: true if a chunk stays open until the last band that needs it.
        scratch_bytes: buffer for elements that are read but not wanted, or not wanted unchanged.
        memory_bytes: all buffers and decoders together.
    """

    cut: Cut
    keeps_open: bool
    scratch_bytes: int
    memory_bytes: int


class Streaming(Struct, frozen=True):
    """A box of a stored tensor, to be streamed in a dtype."""

    stored: StoredTensor
    box: Box
    dtype: str
    saturate: bool = False

    @property
    def is_cast(self) -> bool:
        return self.dtype != self.stored.spec.dtype

    @property
    def decoder_bytes(self) -> int:
        return decoder_bytes(self.stored.encoding, self.stored.spec.chunk_bytes) + RECORD_BYTES

    @property
    def scratch_bytes(self) -> int:
        return max(self.stored.spec.itemsize, min(BAND_BYTES, self.stored.spec.chunk_bytes))

    @property
    def fixed_bytes(self) -> int:
        cast = CAST_SCRATCH_BYTES if self.is_cast else 0
        return self.scratch_bytes + TASK_OVERHEAD_BYTES + cast

    def cut(self, band_bytes: int) -> Cut:
        return Cut.of(self.box.shape, band_bytes // storage_bytes(self.dtype))

    def band_bytes(self, cut: Cut) -> int:
        return COPIES * cut.size(self.box.shape) * storage_bytes(self.dtype)

    def open_at_once(self, cut: Cut, is_part: bool) -> int:
        """The largest number of chunks that more than one band needs at the same time.

        Args:
            is_part: only a stretch of the box is streamed; its bands begin and end anywhere.
        """
        spans = [_extents(c, a, b) for c, a, b in self._sides()]
        again = (d for d, (_, most) in enumerate(spans) if most > 1 and (is_part or d < cut.dim))
        first = next(again, None)
        if first is None and spans and spans[cut.dim][1] > cut.rows:
            first = cut.dim
        return 1 if first is None else math.prod(count for count, _ in spans[first + 1 :])

    def _sides(self) -> Sequence[tuple[Cuts, int, int]]:
        return list(zip(self.stored.spec.storage.cuts, self.box.start, self.box.stop, strict=True))


def plan_stream(streaming: Streaming, max_memory: int, *, is_part: bool = False) -> StreamPlan:
    """The plan to stream a box; MemoryBudgetError if not even one chunk and a small band fit."""
    found = _open_side_by_side(streaming, max_memory, is_part)
    return found or _one_by_one(streaming, max_memory)


def _open_side_by_side(streaming: Streaming, max_memory: int, is_part: bool) -> StreamPlan | None:
    cut = streaming.cut(BAND_BYTES)
    open_chunks = streaming.open_at_once(cut, is_part)
    needed = (
        open_chunks * streaming.decoder_bytes + streaming.fixed_bytes + streaming.band_bytes(cut)
    )
    if open_chunks > MOST_OPEN or needed > max_memory:
        return None
    return StreamPlan(cut, True, streaming.scratch_bytes, needed)


def _one_by_one(streaming: Streaming, max_memory: int) -> StreamPlan:
    beside = streaming.decoder_bytes + streaming.fixed_bytes
    room = (max_memory - beside) // COPIES
    least = min(LEAST_BAND_BYTES, max(1, streaming.box.size) * storage_bytes(streaming.dtype))
    if room < least:
        raise _too_small(streaming, beside + COPIES * least, max_memory)
    most = BAND_BYTES if is_seekable(streaming.stored.encoding) else room
    cut = streaming.cut(min(room, most))
    needed = beside + streaming.band_bytes(cut)
    return StreamPlan(cut, False, streaming.scratch_bytes, needed)


def _too_small(streaming: Streaming, smallest: int, max_memory: int) -> MemoryBudgetError:
    stored = streaming.stored
    mib = -(-smallest // MIB)
    return MemoryBudgetError(
        f"to stream {stored.spec.name!r} takes {format_bytes(smallest)} to decode a chunk "
        f"({stored.encoding.compressor}) and hold a band of it, but max_memory is {format_bytes(max_memory)}; "
        f"allow {mib}MiB",
        smallest_bytes=mib * MIB,
    )


def _extents(cuts: Cuts, start: int, stop: int) -> tuple[int, int]:
    """The number of chunks that ``start:stop`` touches along a dimension, and the largest extent that it wants of one."""
    inner = [start, *(c for c in cuts if start < c < stop), stop]
    most = max(b - a for a, b in pairwise(inner))
    return len(inner) - 1, most


class BoxStream(ExitStack):
    """Fills arrays with the elements of ``streaming.box``, one band after another.

    A chunk that was taken whole is checked when it is closed: its codec's own checks and its CRC32C.

    Attributes:
        cast: the loss of casts so far.
    """

    def __init__(
        self,
        reader: Reader,
        streaming: Streaming,
        scratch: Bytes,
        *,
        keeps_open: bool,
        checks_all: bool = False,
    ) -> None:
        """
        Args:
            scratch: memory for elements that are read but not wanted, or not wanted unchanged.
            keeps_open: true if a chunk stays open until the last band that needs it.
            checks_all: true if raw chunks with skipped parts (padding, other bands) are read once
                more for their checksum.
        """
        super().__init__()
        self._reader = reader
        self._streaming = streaming
        self._scratch = scratch
        self._keeps_open = keeps_open
        self._checks_all = checks_all
        self._open: dict[Index, ChunkReader] = {}
        self._chunks = StoredChunks.of(streaming.stored)
        self._dtype = element_dtype(streaming.stored.spec.dtype, is_cast=streaming.is_cast)
        self.cast = CastStats()
        self.callback(self._close_all)

    def fill(self, out: Array, band: Box) -> None:
        """Puts the elements of ``band``, which lies behind those taken before, into ``out``."""
        storage = self._streaming.stored.spec.storage
        for index in itertools.product(*storage.overlapping(band)):
            self._take(index, band, out)

    def _take(self, index: Index, band: Box, out: Array) -> None:
        """Takes the part of the band that the chunk has."""
        chunk_box = self._streaming.stored.spec.storage.box(index)
        inside = chunk_box.intersect(band)
        if inside is None:
            return
        opened = self._open.pop(index, None) or self._opened(index)
        self._open[index] = opened
        self._put(opened, inside, out[inside.relative_to(band.start).slices])
        self._close_where_done(index, opened, inside)

    def _put(self, opened: ChunkReader, box: Box, place: Array) -> None:
        """Reads the elements of ``box`` into ``place``: straight, if they lie there as in the chunk, else piece by piece."""
        local = box.relative_to(opened.chunk.box.start)
        around, streaming = opened.chunk.stored_shape, self._streaming
        is_one_run = run_elements(local.shape, around) == local.size
        if is_one_run and not streaming.is_cast and place.flags.c_contiguous:
            opened.read(local, place.reshape(-1).view("u1"))
            return
        if opened.skips_gaps(local):
            around = local.shape
        most = self._scratch.nbytes // streaming.stored.spec.itemsize
        for piece in pieces(Box.full(local.shape), around, most):
            elements = opened.read(piece.shift(local.start), self._scratch)
            if streaming.is_cast:
                lost = cast_into(place[piece.slices], elements, saturate=streaming.saturate)
                self.cast = self.cast + lost
            else:
                place[piece.slices] = elements

    def _opened(self, index: Index) -> ChunkReader:
        streaming = self._streaming
        chunk = SourceChunk.at(index, streaming.stored.spec, self._reader)
        wanted = chunk.box.intersect(streaming.box) or chunk.box
        return ChunkReader(self._chunks, chunk, wanted, self._dtype)

    def _close_where_done(self, index: Index, opened: ChunkReader, taken: Box) -> None:
        """Closes a chunk that is no longer needed; checks it if all of it was taken."""
        wanted = opened.wanted
        is_done = taken.stop == wanted.stop
        if not is_done and self._keeps_open:
            return
        del self._open[index]
        if is_done and wanted == opened.chunk.box:
            self._check(opened)
        opened.close()

    def _check(self, opened: ChunkReader) -> None:
        """Raises CorruptError, naming tensor and chunk, if a checksum does not fit."""
        if self._checks_all:
            opened.check_all()
        else:
            opened.check()

    def _close_all(self) -> None:
        while self._open:
            self._open.popitem()[1].close()
