"""Sinks: where the pieces of a band go, into raw files at once or into chunks held in memory."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from operator import add
from typing import TYPE_CHECKING, Any

from reshard.engine.bands import bands, row_bytes
from reshard.engine.cast import cast_into
from reshard.engine.closing import end_chunk
from reshard.engine.cutting import Cutter, Piece, runs
from reshard.engine.digest import CRC32C, linear_of_box
from reshard.engine.mirror import Mirror
from reshard.engine.opaque import opaque_dtype
from reshard.engine.task import CastStats, ChunkPart, TargetChunk, Task
from reshard.formats.codecs import encode_chunk
from reshard.layout.box import Box
from reshard.layout.dtypes import numpy_dtype, storage_bytes
from reshard.planning.cost import BAND_BYTES
from reshard.planning.placement import inverse
from reshard.storage.local import WRITE_BYTES, OpenFiles, open_new, storage_errors, write_all

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from reshard.engine.buffers import Arena, Bytes

    Array = npt.NDArray[Any]

Part = tuple["Array", Box]
"""Elements of the source and the box they fill, in the placement's coordinates."""

Put = Callable[[str, "tuple[int, ...]", "bytes | memoryview"], None]


class _Pieces:
    """What both sinks share: cutting bands, and copying elements into target memory."""

    def __init__(self, task: Task, mirror: Mirror) -> None:
        self.task = task
        self.cast = CastStats()
        self.digest = 0
        self.mirror = mirror
        self.cutter = Cutter(task)
        self.order = task.placement.axis_order
        self._inverse = inverse(self.order)
        self._is_cast = task.placement.is_cast
        self.dtype = target_element_type(task)

    def copy(self, elements: Array, out: Array) -> None:
        """Fills ``out``, which has the target's axis order and dtype."""
        turned = out.transpose(self._inverse)
        if self._is_cast:
            self.cast = self.cast + cast_into(turned, elements)
        else:
            turned[...] = elements

    def add_digest(self, pieces: Sequence[tuple[Array, Piece]], box: Box) -> None:
        """Counts pieces by where they lie in the chunks, not by where they came from."""
        targets = self.task.targets
        placed = [
            (elements, tuple(map(add, targets[p.number].box.start, p.start)))
            for elements, p in pieces
        ]
        self.digest ^= self.mirror.digest(placed, self.task.placement.to_target(box))


class PieceSink(_Pieces):
    """Writes each piece straight to its place in a raw target chunk."""

    def __init__(self, task: Task, files: OpenFiles, mirror: Mirror, scratch: Bytes) -> None:
        super().__init__(task, mirror)
        self._files = files
        self._scratch = scratch
        self._itemsize = self.dtype.itemsize
        self._crc = [0] * len(task.targets)
        self._nbytes = [0] * len(task.targets)

    def put(self, band: Array, box: Box) -> None:
        """Writes a band of the source, which lies at ``box``, piece by piece."""
        written: list[tuple[Array, Piece]] = []
        at = 0
        for piece in self.cutter.pieces(box):
            elements = self._elements(band[piece.in_band], at)
            at += elements.nbytes
            self._write(elements, piece)
            written.append((elements, piece))
        self.add_digest(written, box)

    def close(self) -> list[ChunkPart]:
        """What every chunk got; one that got all of it is finished here, while its file is open."""
        written = zip(self.task.targets, self._crc, self._nbytes, strict=True)
        return [self._closed(target, crc, nbytes) for target, crc, nbytes in written if nbytes]

    def _closed(self, target: TargetChunk, crc: int, nbytes: int) -> ChunkPart:
        if nbytes < target.box.size * self._itemsize:
            return ChunkPart(target.index, crc, nbytes)
        file = str(target.file)
        decoded_bytes = math.prod(target.stored_shape) * self._itemsize
        trailer = crc if self.task.target_encoding.checksum else None
        size = end_chunk(self._files.fd(file), self._files.path(file), trailer, decoded_bytes)
        return ChunkPart(target.index, crc, nbytes, size)

    def _elements(self, view: Array, at: int) -> Array:
        """A piece as the target wants it: the band's own memory where that is it already."""
        turned = view.transpose(self.order)
        if turned.flags.c_contiguous and not self._is_cast:
            return turned
        nbytes = view.size * self._itemsize
        out: Array = self._scratch[at : at + nbytes].view(self.dtype).reshape(turned.shape)
        self.copy(view, out)
        return out

    def _write(self, elements: Array, piece: Piece) -> None:
        target = self.task.targets[piece.number]
        file = str(target.file)
        fd, path = self._files.fd(file), self._files.path(file)
        data = elements.reshape(-1).view("u1").data
        places = runs(piece.start, piece.shape, target.stored_shape, self._itemsize)
        at = 0
        for offset, nbytes in places:
            write_all(fd, data[at : at + nbytes], offset, path)
            at += nbytes
        self._nbytes[piece.number] += at
        self._crc[piece.number] ^= self._chunk_crc(elements, piece, target, places)

    def _chunk_crc(
        self, elements: Array, piece: Piece, target: TargetChunk, places: Sequence[tuple[int, int]]
    ) -> int:
        """What the piece adds to the CRC32C of its chunk."""
        if len(places) == 1:
            offset, nbytes = places[0]
            stored_bytes = math.prod(target.stored_shape) * self._itemsize
            return CRC32C.shift(CRC32C.linear(elements), stored_bytes - offset - nbytes)
        local = Box.full(piece.shape).shift(piece.start)
        return linear_of_box(CRC32C, elements, local, target.stored_shape)


class ChunkSink(_Pieces):
    """Assembles target chunks in memory, then encodes and writes each whole."""

    def __init__(
        self, task: Task, root: str, mirror: Mirror, put: Put | None, arena: Arena
    ) -> None:
        super().__init__(task, mirror)
        self._root = root
        self._put = put
        self._chunks = [self._buffer(t, arena) for t in task.targets]

    def put(self, band: Array, box: Box) -> None:
        """Copies a band of the source, which lies at ``box``, into the chunks."""
        for piece in self.cutter.pieces(box):
            self.copy(band[piece.in_band], self._inside(piece))

    def close(self) -> list[ChunkPart]:
        """Sums the chunks up row by row across all of them, then stores each."""
        unit = self.task.unit
        shape, itemsize = unit.shape, self.dtype.itemsize
        rows = row_bytes(shape, itemsize) or [itemsize]
        for band in bands(shape, len(shape), rows, BAND_BYTES):
            box = band.box(shape).shift(unit.start)
            self.add_digest([(self._inside(p), p) for p in self.cutter.pieces(box)], box)
        return [self._stored(t, c) for t, c in zip(self.task.targets, self._chunks, strict=True)]

    def _inside(self, piece: Piece) -> Array:
        """The piece's elements in its chunk, in the target's axis order."""
        box = Box.full(piece.shape).shift(piece.start)
        inside: Array = self._chunks[piece.number][box.slices]
        return inside

    def _buffer(self, target: TargetChunk, arena: Arena) -> Array:
        nbytes = math.prod(target.stored_shape) * self.dtype.itemsize
        memory = arena.take(nbytes)
        if target.stored_shape != target.box.shape:
            memory[:] = 0
        chunk: Array = memory.view(self.dtype).reshape(target.stored_shape)
        return chunk

    def _stored(self, target: TargetChunk, chunk: Array) -> ChunkPart:
        data = chunk.reshape(-1).view("u1").data
        size = store_chunk(self.task, target, data, self._root, self._put)
        return ChunkPart(target.index, 0, target.box.size * self.dtype.itemsize, size)


def store_chunk(
    task: Task, target: TargetChunk, data: memoryview, root: str, put: Put | None
) -> int:
    """Encodes a whole chunk and writes it below ``root``; its size in bytes as it is stored."""
    encoded = encode_chunk(task.target_encoding, data)
    nbytes = sum(map(len, encoded))
    if nbytes <= WRITE_BYTES or target.file is None:
        encoded = (b"".join(encoded),)  # one call for a small one and its checksum
    if target.file is None and put is not None:
        put(task.placement.target, target.index, encoded[0])
    else:
        _write_file(f"{root}/{target.file}", encoded)
    return nbytes


def _write_file(path: str, parts: Sequence[bytes | memoryview]) -> None:
    fd, offset = open_new(path), 0
    try:
        for part in parts:
            write_all(fd, memoryview(part), offset, path)
            offset += len(part)
    finally:
        with storage_errors("close", path):
            os.close(fd)


def source_element_type(task: Task) -> np.dtype[Any]:
    """What source elements are viewed as: their dtype for a cast, else integers that keep every bit."""
    return _element_type(task.placement.source_dtype, is_cast=task.placement.is_cast)


def target_element_type(task: Task) -> np.dtype[Any]:
    """What target elements are viewed as."""
    return _element_type(task.placement.target_dtype, is_cast=task.placement.is_cast)


def _element_type(dtype: str, *, is_cast: bool) -> np.dtype[Any]:
    return numpy_dtype(dtype) if is_cast else opaque_dtype(storage_bytes(dtype))
