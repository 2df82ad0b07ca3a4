"""BoxStream: reads a box of a stored tensor band by band, in row-major order.

A band within one chunk is handed over where it was decoded. Any other is assembled from the parts that its chunks have, in memory for a
band or in memory of the caller. ``box_plan`` decides how large bands are, and which chunks stay open between them.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from reshard.engine.cast import cast_into
from reshard.engine.decode.box_plan import StoredBox
from reshard.engine.decode.chunk_reader import ChunkBuffers, ChunkFacts, ChunkReader
from reshard.engine.task import CastStats
from reshard.formats.base import Reader
from reshard.formats.contents import SourceChunk
from reshard.geometry.dtypes import element_dtype
from reshard.geometry.grid import Box, Index
from reshard.geometry.row_major import pieces, run_elements

if TYPE_CHECKING:
    import numpy.typing as npt

    from reshard.engine.buffers import Bytes

    Array = npt.NDArray[Any]


class BandMemory(Struct, frozen=True):
    """The buffers of one side of a plan: for a band, for what is not wanted unchanged, and for encoded bytes."""

    band: Bytes
    scratch: Bytes
    encoded: Bytes | None = None


class BoxStream:
    """The elements of ``side.box``, one band after another.

    A chunk that was taken whole is checked when it is closed: its codec's own checks and its CRC32C.

    Attributes:
        cast: the loss of casts so far.
        read_bytes: stored bytes that were read so far, of the chunks that are closed.
    """

    def __init__(
        self,
        side: StoredBox,
        reader: Reader | None,
        memory: BandMemory,
        *,
        keeps_open: bool,
        checks_all: bool = False,
        is_dense: bool = False,
    ) -> None:
        """
        Args:
            reader: of the checkpoint; None if the side's only chunk is located.
            keeps_open: true if a chunk stays open until the last band that needs it.
            checks_all: true if raw chunks with skipped parts (padding, other bands) are read once
                more for their checksum.
            is_dense: true if bands are wanted without gaps between their rows.
        """
        self._side = side
        self._reader = reader
        self._memory = memory
        self._keeps_open = keeps_open
        self._checks_all = checks_all
        self._is_dense = is_dense or side.is_cast
        self._open: dict[Index, ChunkReader] = {}
        self._chunks = ChunkFacts.of(side.stored)
        self._source = element_dtype(side.stored.spec.dtype, is_cast=side.is_cast)
        self._target = element_dtype(side.dtype, is_cast=side.is_cast)
        self.cast = CastStats()
        self.read_bytes = 0

    def __enter__(self) -> BoxStream:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes chunks that are still open, without checks."""
        while self._open:
            self._open.popitem()[1].close()

    def take(self, band: Box, direct: Bytes | None = None) -> Array:
        """The elements of ``band``, which lies behind those taken before; valid until the next one is taken.

        They lie in ``direct``, memory for exactly these elements, if it is given.
        """
        indices = self._indices(band)
        if len(indices) == 1:
            (index,) = indices
            opened = self._opened(index, band, direct)
            elements = self._within_one(opened, band, direct)
            if elements is not None:
                self._close_where_done(index, opened, band)
                return elements
        out = self._shaped(band, self._memory.band if direct is None else direct)
        self.fill(out, band)
        return out

    def _shaped(self, band: Box, memory: Bytes) -> Array:
        nbytes = band.size * self._target.itemsize
        shaped: Array = memory[:nbytes].view(self._target).reshape(band.shape)
        return shaped

    def fill(self, out: Array, band: Box) -> None:
        """Puts the elements of ``band``, which lies behind those taken before, into ``out``."""
        for index in self._indices(band):
            opened = self._opened(index, band)
            inside = opened.chunk.box.intersect(band)
            if inside is not None:
                self._put(opened, inside, out[inside.relative_to(band.start).slices])
                self._close_where_done(index, opened, inside)

    def _indices(self, band: Box) -> list[Index]:
        if self._side.chunk is not None:
            return [self._side.chunk.index]
        return list(itertools.product(*self._side.stored.spec.storage.overlapping(band)))

    def _within_one(self, opened: ChunkReader, band: Box, direct: Bytes | None) -> Array | None:
        """A band of one chunk, where it is decoded; None if it must be copied."""
        local, own = band.relative_to(opened.chunk.box.start), self._memory.band
        count = opened.elements_with_gaps(local)
        is_exact = count == local.size
        if self._side.is_cast or (self._is_dense and not is_exact):
            return None
        if opened.is_decoded:
            elements = opened.read(local, own)
            is_there = direct is None or opened.is_in(direct)
        else:
            is_there = direct is None or is_exact
            memory = direct if direct is not None and is_exact else own
            if count * self._source.itemsize > memory.nbytes:
                return None
            elements = opened.read(local, memory)
        if is_there or direct is None:
            return elements
        out = self._shaped(band, direct)
        out[...] = elements
        return out

    def _put(self, opened: ChunkReader, box: Box, place: Array) -> None:
        """Reads the elements of ``box`` into ``place``: straight, if they lie there as in the chunk, else piece by piece."""
        local = box.relative_to(opened.chunk.box.start)
        around, side = opened.chunk.stored_shape, self._side
        is_one_run = run_elements(local.shape, around) == local.size
        if is_one_run and not side.is_cast and not opened.is_decoded and place.flags.c_contiguous:
            opened.read(local, place.reshape(-1).view("u1"))
            return
        if opened.skips_gaps(local):
            around = local.shape
        scratch = self._memory.scratch
        most = local.size if opened.is_decoded else scratch.nbytes // self._source.itemsize
        for piece in pieces(Box.full(local.shape), around, most):
            elements = opened.read(piece.shift(local.start), scratch)
            if side.is_cast:
                lost = cast_into(place[piece.slices], elements, saturate=side.saturate)
                self.cast = self.cast + lost
            else:
                place[piece.slices] = elements

    def _opened(self, index: Index, band: Box, direct: Bytes | None = None) -> ChunkReader:
        """The chunk, which stays open or was; ``direct`` takes it if it is decoded at once and is all of the band."""
        opened = self._open.get(index)
        if opened is None:
            chunk, at_once = self._located(index), None
            if self._memory.encoded is not None:
                is_all = chunk.box == band and chunk.box.shape == chunk.stored_shape
                place = direct if direct is not None and is_all else self._memory.band
                at_once = ChunkBuffers(place, self._memory.encoded)
            wanted = chunk.box.intersect(self._side.box) or chunk.box
            opened = ChunkReader(self._chunks, chunk, wanted, self._source, at_once)
            self._open[index] = opened
        return opened

    def _located(self, index: Index) -> SourceChunk:
        if self._side.chunk is not None:
            return self._side.chunk
        if self._reader is None:
            raise ValueError(f"chunk {index} of {self._chunks.name!r} was not located")
        return SourceChunk.at(index, self._side.stored.spec, self._reader)

    def _close_where_done(self, index: Index, opened: ChunkReader, taken: Box) -> None:
        """Closes a chunk that is no longer needed; checks it if all of it was taken."""
        wanted = opened.wanted
        is_done = taken.stop == wanted.stop
        if not is_done and self._keeps_open:
            return
        del self._open[index]
        if is_done:
            self._check(opened)
        self.read_bytes += opened.read_bytes
        opened.close()

    def _check(self, opened: ChunkReader) -> None:
        """Raises CorruptError, naming tensor and chunk, if a checksum does not fit."""
        if opened.wanted != opened.chunk.box:
            opened.check_end()
        elif self._checks_all:
            opened.check_all()
        else:
            opened.check()
