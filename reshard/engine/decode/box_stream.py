"""BoxStream: boxes of a stored tensor in row-major order; each chunk is decoded as few times as the plan allows."""

from __future__ import annotations

import itertools
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from reshard.engine.cast import cast_into
from reshard.engine.decode.chunk_reader import ChunkReader, StoredChunks
from reshard.engine.task import CastStats, SourceChunk
from reshard.formats.base import Reader
from reshard.geometry.dtypes import element_dtype
from reshard.geometry.grid import Box, Index
from reshard.geometry.row_major import pieces, run_elements

if TYPE_CHECKING:
    import numpy.typing as npt

    from reshard.engine.buffers import Bytes
    from reshard.engine.decode.stream_plan import Streaming

    Array = npt.NDArray[Any]


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
