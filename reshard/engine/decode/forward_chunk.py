"""ForwardChunk: reads boxes from one stored chunk in row-major order; the stream only goes forward."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from reshard.checksums.runs import row_major
from reshard.engine.cast import cast_into
from reshard.engine.decode.chunk_decoder import StoredChunks, open_chunk
from reshard.engine.task import CastStats, SourceChunk
from reshard.formats.codecs.raw import RawStream
from reshard.geometry.box import Box
from reshard.geometry.dtypes import element_dtype, storage_bytes
from reshard.geometry.row_major import MIN_RUN_BYTES, pieces, run_elements, span

if TYPE_CHECKING:
    import numpy.typing as npt

    from reshard.engine.buffers import Bytes

    Array = npt.NDArray[Any]


class ForwardChunk:
    """An open chunk. Raw bytes that are not wanted are not read, unless rows are too short to be read alone."""

    def __init__(
        self, stored: StoredChunks, chunk: SourceChunk, is_cast: bool, *, saturate: bool = False
    ) -> None:
        self.chunk = chunk
        self._itemsize = storage_bytes(stored.dtype)
        self._dtype = element_dtype(stored.dtype, is_cast=is_cast)
        self._is_cast = is_cast
        self._saturate = saturate
        self._position = 0
        self._stream = open_chunk(stored, chunk)

    def fill(self, out: Array, box: Box, scratch: Bytes) -> CastStats:
        """Puts the elements of ``box`` (in the tensor, within the chunk, behind what was taken before) into ``out``."""
        local = box.relative_to(self.chunk.box.start)
        around = self.chunk.stored_shape
        run = run_elements(local.shape, around)
        if run == local.size and not self._is_cast and out.flags.c_contiguous:
            self._read(span(local, around)[0] * self._itemsize, out.reshape(-1).view("u1"))
            return CastStats()
        take: Callable[[Box, Bytes], Array] = self._with_gaps
        has_long_runs = MIN_RUN_BYTES <= run * self._itemsize < local.size * self._itemsize
        if has_long_runs and isinstance(self._stream, RawStream):
            take, around = partial(self._runs, self._stream), local.shape
        return self._fill_by_pieces(out, local, scratch, take, around)

    def _fill_by_pieces(
        self,
        out: Array,
        local: Box,
        scratch: Bytes,
        take: Callable[[Box, Bytes], Array],
        around: Sequence[int],
    ) -> CastStats:
        """``around`` is the shape of which as many elements are read at once as ``scratch`` holds."""
        stats = CastStats()
        most = scratch.nbytes // self._itemsize
        inner = Box.full(local.shape)
        for place_box in pieces(inner, around, most):
            elements = take(place_box.shift(local.start), scratch)
            place = out[place_box.slices]
            if self._is_cast:
                stats = stats + cast_into(place, elements, saturate=self._saturate)
            else:
                place[...] = elements
        return stats

    def _runs(self, raw: RawStream, piece: Box, scratch: Bytes) -> Array:
        """The piece, read run by run."""
        around, taken = self.chunk.stored_shape, scratch[: piece.size * self._itemsize]
        raw.read_box(piece, around, self._itemsize, taken.data)
        return taken.view(self._dtype).reshape(piece.shape)

    def _with_gaps(self, piece: Box, scratch: Bytes) -> Array:
        """The piece as it lies among what is read with it."""
        import numpy as np

        first, count = span(piece, self.chunk.stored_shape)
        taken = scratch[: count * self._itemsize]
        self._read(first * self._itemsize, taken)
        strides = row_major(self.chunk.stored_shape, self._itemsize)
        return np.ndarray(piece.shape, self._dtype, taken.data, strides=strides)

    def _read(self, first: int, out: Bytes) -> None:
        """Bytes from ``first`` on, which lies at or behind where the stream is."""
        self._stream.skip(first - self._position)
        self._stream.readinto(out.data)
        self._position = first + out.nbytes

    def close_checked(self) -> bool:
        """Closes a chunk of which all was taken; CorruptError where its checksum does not fit.

        False where there is one, but bytes of a raw chunk were skipped, so that it says nothing.
        """
        return self._stream.close_checked()

    def close(self) -> None:
        self._stream.close()
