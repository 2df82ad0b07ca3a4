"""Reads ranges of a chunk that is gathered from raw pieces, each byte from its own place.

A range of the chunk is a few boxes. The overlap of a box and a piece is one or more runs of the piece's file. Runs that
follow one another are read together; short ones with small gaps are read with the gaps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from reshard.errors import CorruptError
from reshard.formats.contents import GatheredChunk, RawPiece
from reshard.geometry.dtypes import opaque_dtype
from reshard.geometry.grid import Box
from reshard.geometry.row_major import run_boxes, strided_span
from reshard.geometry.turned_copy import turned_copy
from reshard.storage.location import open_range

if TYPE_CHECKING:
    import numpy.typing as npt

    from reshard.storage.base import OpenFile

    Array = npt.NDArray[Any]

SCRATCH_BYTES = 256 << 10
"""Read at once if elements do not go straight to their places."""

MANY_PIECES = 32
"""From this many pieces on, numpy finds the pieces of a box."""

PAGE_BYTES = 4096
"""Shorter runs are read together with gaps that are no longer than this: a call costs about as much as a page."""


class Gather:
    """The elements of a gathered chunk in row-major order; one file is open at a time.

    Args:
        where: tensor and chunk, for messages.
        read_ahead_bytes: see ``Encoding``.

    Raises StorageError if a file cannot be opened or read, CorruptError if one is too short.
    """

    def __init__(
        self, chunk: GatheredChunk, where: str, remedy: str, read_ahead_bytes: int = 0
    ) -> None:
        self._chunk = chunk
        self._where = where
        self._remedy = remedy
        self._ahead_bytes = read_ahead_bytes
        self._path = ""
        self._file: OpenFile | None = None
        self._edges: tuple[Array, Array] | None = None

    def fill(self, position: int, out: memoryview) -> None:
        """Fills ``out`` with the bytes from ``position``; both contain whole elements."""
        import numpy as np

        chunk = self._chunk
        start = position // chunk.itemsize
        elements = np.frombuffer(out, opaque_dtype(chunk.itemsize))
        at = 0
        for box in run_boxes(chunk.box.shape, start, start + len(elements)):
            self._fill_box(elements[at : at + box.size].reshape(box.shape), box)
            at += box.size

    def fill_box(self, box: Box, out: memoryview) -> None:
        """Fills ``out`` with the elements of ``box``, which counts from the chunk's start."""
        import numpy as np

        elements = np.frombuffer(out, opaque_dtype(self._chunk.itemsize))
        self._fill_box(elements.reshape(box.shape), box)

    def close(self) -> None:
        """Closes the file, if one is open; may be called twice."""
        if self._file is not None:
            self._file.close()
        self._file, self._path = None, ""

    def _fill_box(self, out: Array, local: Box) -> None:
        """``local`` counts from the chunk's start."""
        box = local.shift(self._chunk.box.start)
        for piece in self._near(box):
            inside = piece.box.intersect(box)
            if inside is not None:
                file = self._opened(piece)
                place = out[inside.relative_to(box.start).slices]
                strides = _strides(piece, self._chunk.itemsize)
                first = inside.relative_to(piece.box.start).start
                offset = piece.offset + sum(i * s for i, s in zip(first, strides, strict=True))
                read_strided(partial(self._read, file, piece), offset, strides, place)

    def _near(self, box: Box) -> Iterable[RawPiece]:
        """The pieces that may have elements of the box."""
        pieces = self._chunk.pieces
        if len(pieces) < MANY_PIECES:
            return pieces
        import numpy as np

        if self._edges is None:
            boxes = [piece.box for piece in pieces]
            self._edges = np.array([b.start for b in boxes]), np.array([b.stop for b in boxes])
        starts, stops = self._edges
        is_near = ((starts < box.stop) & (stops > box.start)).all(axis=1)
        return map(pieces.__getitem__, np.flatnonzero(is_near))

    def _opened(self, piece: RawPiece) -> OpenFile:
        if self._file is None or piece.path != self._path:
            self.close()
            what = f"{self._where}, piece {piece.box}"
            strides = _strides(piece, 1)
            end = piece.offset + strided_span(piece.box.shape, strides) * self._chunk.itemsize
            self._file = open_range(
                piece.path, piece.version, what, piece.offset, end, self._ahead_bytes
            )
            self._path = piece.path
        return self._file

    def _read(self, file: OpenFile, piece: RawPiece, offset: int, out: memoryview) -> None:
        done = file.fill(offset, out)
        if done < len(out):
            raise CorruptError(
                f"{self._where}: the file of its piece {piece.box}, {piece.path}, ends at byte {offset + done}; "
                f"{self._remedy}"
            )


def _strides(piece: RawPiece, itemsize: int) -> tuple[int, ...]:
    """Bytes from an element to the next along each axis."""
    if piece.strides:
        return tuple(stride * itemsize for stride in piece.strides)
    shape = piece.box.shape
    strides = [0] * len(shape)
    step = itemsize
    for dim in reversed(piece.order or range(len(shape))):
        strides[dim] = step
        step *= shape[dim]
    return tuple(strides)


def read_strided(
    read: Callable[[int, memoryview], None], offset: int, strides: Sequence[int], out: Array
) -> None:
    """Fills ``out`` with the elements from ``offset`` on that are ``strides`` bytes apart along each of its axes; 0 repeats them.

    ``read(offset, memory)`` fills memory with the bytes from an offset.
    """
    import numpy as np

    # The axes from the slowest to the fastest, as they are stored.
    axes = sorted((d for d, n in enumerate(out.shape) if n > 1), key=lambda d: -strides[d])
    span, is_dense, is_whole = _span(out, axes, strides)
    if is_whole and axes == sorted(axes) and out.flags.c_contiguous:
        read(offset, out.reshape(-1).view("u1").data)
        return
    if is_dense and span <= SCRATCH_BYTES:
        scratch = np.empty(span, "u1")
        read(offset, scratch.data)
        turned_copy(out, np.ndarray(out.shape, out.dtype, scratch, strides=tuple(strides)))
        return
    slowest = axes[0]
    rows = max(1, SCRATCH_BYTES // strides[slowest]) if is_dense else 1
    for start in range(0, out.shape[slowest], rows):
        part = out[(slice(None),) * slowest + (slice(start, start + rows),)]
        read_strided(read, offset + start * strides[slowest], strides, part)


def _span(out: Array, axes: Sequence[int], strides: Sequence[int]) -> tuple[int, bool, bool]:
    """Bytes from the first element to the end of the last; True if they may be read with their gaps; True if they have none.

    A gap below 0 means elements that are used again.
    """
    span = out.itemsize
    is_dense = is_whole = True
    for dim in reversed(axes):
        gap = strides[dim] - span
        is_whole = is_whole and gap == 0
        is_dense = is_dense and (gap == 0 or (span < PAGE_BYTES and gap <= PAGE_BYTES))
        span += (out.shape[dim] - 1) * strides[dim]
    return span, is_dense, is_whole
