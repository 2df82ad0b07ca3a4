"""Sinks: where the pieces of a band go, into raw files at once or into chunks held in memory."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from reshard.engine.bands import bands, row_bytes
from reshard.engine.cast import cast_into
from reshard.engine.digest import CRC32C, finish, linear_of_box
from reshard.engine.mirror import Mirror
from reshard.engine.opaque import opaque_dtype
from reshard.engine.task import CastStats, ChunkPart, TargetChunk, Task
from reshard.formats.codecs import encode_chunk
from reshard.layout.box import Box
from reshard.layout.dtypes import numpy_dtype, storage_bytes
from reshard.plan.placement import inverse
from reshard.plan.planner import BAND_BYTES
from reshard.storage.local import OpenFiles, write_all

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from reshard.engine.buffers import Arena, Bytes

    Array = npt.NDArray[Any]

Part = tuple["Array", Box]
"""Elements of the source and the box they fill, in the placement's coordinates."""

Put = Callable[[str, "tuple[int, ...]", "bytes | memoryview"], None]


class _Pieces:
    """What both sinks share: finding the target chunks of a box, and copying elements into them."""

    def __init__(self, task: Task, mirror: Mirror) -> None:
        self.task = task
        self.cast = CastStats()
        self.digest = 0
        self.mirror = mirror
        self.order = task.placement.axis_order
        self._inverse = inverse(self.order)
        self.dtype = target_element_type(task)

    def overlapping(self, box: Box) -> Iterator[tuple[int, TargetChunk, Box]]:
        """Number, chunk and overlap of every target chunk that ``box`` touches."""
        grid = self.task.target_grid
        origin = self.task.unit.start
        for number, index in _numbered(grid.overlapping(box.relative_to(origin)), grid.parts):
            piece = grid.box(index).shift(origin).intersect(box)
            if piece is not None:
                yield number, self.task.targets[number], piece

    def copy(self, elements: Array, out: Array) -> None:
        """Fills ``out``, which has the target's axis order and dtype."""
        turned = out.transpose(self._inverse)
        if self.task.placement.is_cast:
            self.cast = self.cast + cast_into(turned, elements)
        else:
            turned[...] = elements

    def local(self, target: TargetChunk, piece: Box) -> Box:
        """``piece`` within the stored chunk."""
        return self.task.placement.to_target(piece).relative_to(target.box.start)


class PieceSink(_Pieces):
    """Writes each piece straight to its place in a raw target chunk."""

    def __init__(self, task: Task, files: OpenFiles, mirror: Mirror, scratch: Bytes) -> None:
        super().__init__(task, mirror)
        self._files = files
        self._scratch = scratch
        self._crc = [0] * len(task.targets)
        self._nbytes = [0] * len(task.targets)

    def put(self, band: Array, box: Box) -> None:
        """Writes a band of the source, which lies at ``box``, piece by piece."""
        written: list[tuple[Array, Box]] = []
        at = 0
        for number, target, piece in self.overlapping(box):
            elements = self._elements(band[piece.relative_to(box.start).slices], at)
            at += elements.nbytes
            local = self.local(target, piece)
            self._crc[number] ^= linear_of_box(CRC32C, elements, local, target.stored_shape)
            self._nbytes[number] += elements.nbytes
            self._write(target, elements, local)
            # By where it lies in the chunk that was written, not by where it came from.
            written.append((elements, local.shift(target.box.start)))
        self.digest ^= self.mirror.digest(written, self.task.placement.to_target(box))

    def close(self) -> list[ChunkPart]:
        return [
            ChunkPart(t.index, crc, nbytes, is_closed=False)
            for t, crc, nbytes in zip(self.task.targets, self._crc, self._nbytes, strict=True)
            if nbytes
        ]

    def _elements(self, view: Array, at: int) -> Array:
        """A piece as the target wants it: the band's own memory where that is it already."""
        turned = view.transpose(self.order)
        if turned.flags.c_contiguous and not self.task.placement.is_cast:
            return turned
        nbytes = view.size * self.dtype.itemsize
        out: Array = self._scratch[at : at + nbytes].view(self.dtype).reshape(turned.shape)
        self.copy(view, out)
        return out

    def _write(self, target: TargetChunk, elements: Array, local: Box) -> None:
        assert target.file is not None
        fd, path = self._files.fd(target.file), self._files.path(target.file)
        data = elements.reshape(-1).view("u1").data
        for at, offset, nbytes in _runs(local, target.stored_shape, self.dtype.itemsize):
            write_all(fd, data[at : at + nbytes], offset, path)


class ChunkSink(_Pieces):
    """Assembles target chunks in memory, then encodes and writes each whole."""

    def __init__(
        self, task: Task, files: OpenFiles, mirror: Mirror, put: Put | None, arena: Arena
    ) -> None:
        super().__init__(task, mirror)
        self._files = files
        self._put = put
        self._chunks = [self._buffer(t, arena) for t in task.targets]

    def put(self, band: Array, box: Box) -> None:
        """Copies a band of the source, which lies at ``box``, into the chunks."""
        for number, target, piece in self.overlapping(box):
            elements = band[piece.relative_to(box.start).slices]
            self.copy(elements, self._chunks[number][self.local(target, piece).slices])

    def close(self) -> list[ChunkPart]:
        """Sums the chunks up row by row across all of them, then stores each."""
        unit = self.task.unit
        shape, itemsize = unit.shape, self.dtype.itemsize
        rows = row_bytes(shape, itemsize) or [itemsize]
        for band in bands(shape, len(shape), rows, BAND_BYTES):
            self._add_digest(band.box(shape).shift(unit.start))
        return [self._stored(t, c) for t, c in zip(self.task.targets, self._chunks, strict=True)]

    def _add_digest(self, box: Box) -> None:
        pieces: list[tuple[Array, Box]] = []
        for number, target, piece in self.overlapping(box):
            local = self.local(target, piece)
            pieces.append((self._chunks[number][local.slices], local.shift(target.box.start)))
        self.digest ^= self.mirror.digest(pieces, self.task.placement.to_target(box))

    def _buffer(self, target: TargetChunk, arena: Arena) -> Array:
        nbytes = math.prod(target.stored_shape) * self.dtype.itemsize
        memory = arena.take(nbytes)
        if target.stored_shape != target.box.shape:
            memory[:] = 0
        chunk: Array = memory.view(self.dtype).reshape(target.stored_shape)
        return chunk

    def _stored(self, target: TargetChunk, chunk: Array) -> ChunkPart:
        self._store(target, chunk.reshape(-1).view("u1").data)
        return ChunkPart(target.index, 0, target.box.size * self.dtype.itemsize, is_closed=True)

    def _store(self, target: TargetChunk, data: memoryview) -> None:
        encoded = encode_chunk(self.task.target_encoding, data)
        if target.file is None:
            assert self._put is not None
            self._put(self.task.placement.target, target.index, b"".join(encoded))
            return
        fd, path, offset = self._files.fd(target.file), self._files.path(target.file), 0
        for piece in encoded:
            write_all(fd, memoryview(piece), offset, path)
            offset += len(piece)


def close_chunk(path: str, crc32c: int | None, stored_bytes: int) -> None:
    """Ends a raw chunk that was written in pieces: its CRC32C trailer, and its full size."""
    import os

    from reshard.storage.local import open_new, storage_errors

    fd = open_new(path)
    try:
        with storage_errors("finish", path):
            if crc32c is None:
                os.ftruncate(fd, stored_bytes)
            else:
                trailer = finish(CRC32C, crc32c, stored_bytes).to_bytes(4, "little")
                write_all(fd, memoryview(trailer), stored_bytes, path)
    finally:
        os.close(fd)


def source_element_type(task: Task) -> np.dtype[Any]:
    """What source elements are viewed as: their dtype for a cast, else integers that keep every bit."""
    return _element_type(task.placement.source_dtype, is_cast=task.placement.is_cast)


def target_element_type(task: Task) -> np.dtype[Any]:
    """What target elements are viewed as."""
    return _element_type(task.placement.target_dtype, is_cast=task.placement.is_cast)


def _element_type(dtype: str, *, is_cast: bool) -> np.dtype[Any]:
    return numpy_dtype(dtype) if is_cast else opaque_dtype(storage_bytes(dtype))


def _numbered(
    ranges: Sequence[range], parts: Sequence[int]
) -> Iterator[tuple[int, tuple[int, ...]]]:
    """Each index of the product of ``ranges`` with its row-major number among ``parts``."""
    import itertools

    for index in itertools.product(*ranges):
        number = 0
        for i, n in zip(index, parts, strict=True):
            number = number * n + i
        yield number, index


def _runs(local: Box, stored_shape: Sequence[int], itemsize: int) -> Iterator[tuple[int, int, int]]:
    """Contiguous runs of a box in a row-major chunk: offset in the box, offset in the chunk, bytes."""
    rank = len(stored_shape)
    inner = rank
    run = itemsize
    while inner > 0:
        inner -= 1
        run *= local.shape[inner]
        if local.shape[inner] != stored_shape[inner]:
            break
    strides = [math.prod(stored_shape[d + 1 :]) * itemsize for d in range(rank)]
    first = sum(s * stride for s, stride in zip(local.start, strides, strict=True))
    offsets = [0]
    for d in range(inner):
        offsets = [o + i * strides[d] for o in offsets for i in range(local.shape[d])]
    for number, offset in enumerate(offsets):
        yield number * run, first + offset, run
