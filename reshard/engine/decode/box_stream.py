"""BoxStream: boxes of a stored tensor in row-major order; each chunk is decoded as rarely as the plan allows."""

from __future__ import annotations

import itertools
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from reshard.engine.decode.chunk_decoder import StoredChunks, check_stored
from reshard.engine.decode.forward_chunk import ForwardChunk
from reshard.engine.task import CastStats, SourceChunk
from reshard.formats.base import Reader
from reshard.geometry.box import Box
from reshard.geometry.grid import Index

if TYPE_CHECKING:
    import numpy.typing as npt

    from reshard.engine.buffers import Bytes
    from reshard.engine.decode.stream_plan import Streaming

    Array = npt.NDArray[Any]


class BoxStream(ExitStack):
    """Fills arrays with the elements of ``streaming.box``, one band after another.

    A chunk of which all was taken is checked when it is closed: its codec's own checks and its CRC32C.

    Attributes:
        cast: what casts lost so far.
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
            scratch: memory for what is read and not wanted, or not as it is.
            keeps_open: whether a chunk stays open until the last band that needs it.
            checks_all: whether raw chunks of which parts were skipped (padding, other bands) are read once
                more for their checksum.
        """
        super().__init__()
        self._reader = reader
        self._streaming = streaming
        self._scratch = scratch
        self._keeps_open = keeps_open
        self._checks_all = checks_all
        self._open: dict[Index, ForwardChunk] = {}
        self._chunks = StoredChunks.of(streaming.stored)
        self.cast = CastStats()
        self.callback(self._close_all)

    def fill(self, out: Array, band: Box) -> None:
        """Puts the elements of ``band``, which lies behind those taken before, into ``out``."""
        storage = self._streaming.stored.spec.storage
        for index in itertools.product(*storage.overlapping(band)):
            self._take(index, band, out)

    def _take(self, index: Index, band: Box, out: Array) -> None:
        """What the chunk has of the band."""
        chunk_box = self._streaming.stored.spec.storage.box(index)
        inside = chunk_box.intersect(band)
        if inside is None:
            return
        opened = self._open.pop(index, None) or self._opened(index)
        self._open[index] = opened
        place = out[inside.relative_to(band.start).slices]
        self.cast = self.cast + opened.fill(place, inside, self._scratch)
        self._close_where_done(index, opened, inside)

    def _opened(self, index: Index) -> ForwardChunk:
        chunk = SourceChunk.at(index, self._streaming.stored.spec, self._reader)
        return ForwardChunk(
            self._chunks, chunk, self._streaming.is_cast, saturate=self._streaming.saturate
        )

    def _close_where_done(self, index: Index, opened: ForwardChunk, taken: Box) -> None:
        """A chunk of which nothing more is needed is closed; one of which all was taken is checked."""
        box = opened.chunk.box
        wanted = box.intersect(self._streaming.box)
        is_done = wanted is not None and taken.stop == wanted.stop
        if not is_done and self._keeps_open:
            return
        del self._open[index]
        if is_done and wanted == box:
            self._close_checked(opened)
        else:
            opened.close()

    def _close_checked(self, opened: ForwardChunk) -> None:
        """Raises CorruptError, naming tensor and chunk, where a checksum does not fit."""
        if not opened.close_checked() and self._checks_all:
            check_stored(self._chunks, opened.chunk)

    def _close_all(self) -> None:
        while self._open:
            self._open.popitem()[1].close()
