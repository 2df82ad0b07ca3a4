"""The stored bytes of one chunk, read in order and never beyond their end; each from its own place if the chunk is gathered from raw pieces.

A range of a gathered chunk is a few boxes. The overlap of a box and a piece is one or more runs of the piece's file. Runs that
follow one another are read together; short ones with small gaps are read with the gaps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from reshard.errors import CorruptError
from reshard.formats.contents import Extent, GatheredChunk, RawPiece
from reshard.geometry.dtypes import opaque_dtype
from reshard.geometry.grid import Box
from reshard.geometry.row_major import dense_runs, run_boxes, strided_span
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


TRAILER_BYTES = 4
"""A CRC32C, little-endian, as zarr3's crc32c codec appends it."""

_REST_BYTES = 256 << 10

REMEDY = "the source is damaged there: restore it from a replica or take another step"


class Source:
    """The encoded bytes of a chunk without their trailer; has at most one file open.

    Args:
        where: tensor and chunk, for messages.
        checksum: True if a CRC32C of the encoded bytes follows them.
        read_ahead_bytes: see ``Encoding``.
        wanted_bytes: the number of bytes behind which nothing is read ahead; None for all.

    Attributes:
        position: the number of bytes that were read or skipped.
        length: the number of all bytes, without the trailer.

    Raises StorageError if the file cannot be opened or read, CorruptError if it is too short.
    """

    def __init__(
        self,
        extent: Extent,
        where: str,
        checksum: bool,
        read_ahead_bytes: int = 0,
        wanted_bytes: int | None = None,
    ) -> None:
        self.extent = extent
        self.where = where
        self.position = 0
        self.length = extent.length - (TRAILER_BYTES if checksum else 0)
        self.has_checksum = checksum
        self._crc = 0
        self._in_order = True
        self._file: OpenFile | None = None
        self._gather: Gather | None = None
        self._check_extent()
        if extent.pieces is not None:
            self._gather = Gather(extent.pieces, where, REMEDY, read_ahead_bytes)
        elif extent.inline is None:
            ahead_of = extent.length if wanted_bytes is None else min(wanted_bytes, extent.length)
            end = extent.offset + ahead_of
            self._file = open_range(
                extent.path, extent.version, where, extent.offset, end, read_ahead_bytes
            )

    def read(self, nbytes: int = -1) -> bytes:
        """The next bytes, fewer only at the end."""
        left = self.length - self.position
        data = self.at(self.position, left if nbytes < 0 else min(nbytes, left))
        self._passed(data)
        return data

    def readinto(self, out: memoryview) -> None:
        """Fill ``out`` with the next bytes, straight from the file."""
        self.fill(self.position, out)
        self._passed(out)

    def seek(self, nbytes: int) -> None:
        """Skip bytes without reading them; the checksum is then unknown."""
        self.position += nbytes
        self._in_order = self._in_order and not nbytes

    def at(self, position: int, nbytes: int) -> bytes:
        """``nbytes`` bytes from ``position``, wherever the stream is."""
        if self.extent.inline is not None:
            return self.extent.inline[position : position + nbytes]
        if self._file is not None:
            place = self.extent.offset + position
            data = self._file.read(place, nbytes)
            if len(data) < nbytes:
                raise self._ends(place + len(data))
            return data
        buffer = bytearray(nbytes)
        self.fill(position, memoryview(buffer))
        return bytes(buffer)

    def read_rest(self) -> None:
        """Reads the bytes that were not read in order, for the checksum."""
        while self.read(_REST_BYTES):
            pass

    def check_trailer(self) -> bool:
        """Compare the checksum; False if there is one but not every byte was read in order."""
        if not self.has_checksum:
            return True
        if not self._in_order or self.position != self.length:
            return False
        stored = int.from_bytes(self.at(self.length, TRAILER_BYTES), "little")
        if stored != self._crc:
            raise self.corrupt(
                f"its CRC32C is recorded as {stored:08x}, but its bytes give {self._crc:08x}"
            )
        return True

    def corrupt(self, what: str) -> CorruptError:
        """The CorruptError for a chunk whose bytes are wrong."""
        extent = self.extent
        return CorruptError(
            f"{self.where}: {what} (stored in {extent.path}, {extent.length} bytes at offset "
            f"{extent.offset}); {REMEDY}"
        )

    def close(self) -> None:
        """Close the file, if there is one; may be called twice."""
        if self._file is not None:
            self._file.close()
        if self._gather is not None:
            self._gather.close()

    def _check_extent(self) -> None:
        extent = self.extent
        if extent.offset < 0 or self.length < 0:
            raise self.corrupt("no chunk can be there")
        if extent.inline is not None and len(extent.inline) != extent.length:
            raise self.corrupt(f"its index contains {len(extent.inline)} bytes of it")

    def fill(self, position: int, out: memoryview) -> None:
        """Fill ``out`` with the bytes from ``position``, wherever the stream is."""
        if self.extent.inline is not None:
            out[:] = self.extent.inline[position : position + len(out)]
            return
        if self._gather is not None:
            self._gather.fill(position, out)
            return
        if self._file is not None:
            place = self.extent.offset + position
            done = self._file.fill(place, out)
            if done < len(out):
                raise self._ends(place + done)

    def fill_box(self, box: Box, around: Sequence[int], itemsize: int, out: memoryview) -> None:
        """Fill ``out`` with a box of a raw chunk of shape ``around``, run by run."""
        if self._gather is not None:
            self._gather.fill_box(box, out)
            return
        for first, place in dense_runs(box, around, itemsize):
            self.fill(first, out[place])

    def _passed(self, data: bytes | memoryview) -> None:
        self.position += len(data)
        if self.has_checksum and self._in_order:
            from awscrt.checksums import crc32c

            self._crc = crc32c(data, self._crc)

    def _ends(self, place: int) -> CorruptError:
        return self.corrupt(f"the file ends at byte {place}")
