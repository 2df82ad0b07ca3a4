"""Sinks: put the pieces of a band into raw files at once, or into chunks held in memory.

What is summed up for the target's digest is noted where it is handed to the file system, and
summed up afterwards: a piece that went elsewhere, or changed until then, is seen.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from operator import add
from typing import TYPE_CHECKING, Any

from reshard.checksums.coverage import coverage
from reshard.checksums.tensor_digest import CRC32C, linear_of_box
from reshard.engine.cast import cast_into
from reshard.engine.decode.interleave import Interleaved
from reshard.engine.error_context import about_tensor
from reshard.engine.output import TaskOutput
from reshard.engine.task import CastStats, ChunkPart, TargetChunk, Task, target_element_type
from reshard.engine.write.chunk_files import (
    end_chunk,
    open_place,
    raw_bytes,
    store_chunk,
    write_runs,
)
from reshard.engine.write.split import Cutter, Piece, runs
from reshard.engine.write.target_digest import TargetDigest
from reshard.errors import VerificationError
from reshard.geometry.bands import bands, row_bytes
from reshard.geometry.box import Box
from reshard.geometry.grid import Index
from reshard.planning.cost import BAND_BYTES
from reshard.planning.placement import inverse
from reshard.storage.local.files import OpenFiles

if TYPE_CHECKING:
    import numpy.typing as npt

    from reshard.engine.buffers import Arena, Bytes

    Array = npt.NDArray[Any]


class _Pieces:
    """What both sinks share: cutting bands, and copying elements into target memory."""

    def __init__(self, task: Task, target_digest: TargetDigest) -> None:
        self.task = task
        self.cast = CastStats()
        self.digest = 0
        self.cover = 0
        self.target_digest = target_digest
        self.cutter = Cutter(task)
        self.order = task.placement.axis_order
        self._inverse = inverse(self.order)
        self._is_cast = task.placement.is_cast
        self._saturate = task.placement.saturate
        self.dtype = target_element_type(task)

    def copy(self, band: Array | Interleaved, where: tuple[slice, ...], out: Array) -> None:
        """Fills ``out``, which has the target's axis order and dtype, with the elements at ``where``."""
        turned = out.transpose(self._inverse)
        if isinstance(band, Interleaved):
            band.copy(where, turned)
        elif self._is_cast:
            self.cast = self.cast + cast_into(turned, band[where], saturate=self._saturate)
        else:
            turned[...] = band[where]

    def place(self, piece: Piece, band: Box) -> Box:
        """Where a piece of ``band`` lies in the target tensor: within the band, and within its chunk."""
        chunk = self.task.targets[piece.number].box
        start = tuple(map(add, chunk.start, piece.start))
        place = Box(start, tuple(map(add, start, piece.shape)))
        if not (chunk.contains(place) and band.contains(place)):
            raise self.defect(f"a piece was to be put at {place}, outside of {band} or of {chunk}")
        return place

    def defect(self, what: str) -> VerificationError:
        """The error for what no defect of the disk can cause, to be raised."""
        return VerificationError(
            f"{self.task.placement.target!r}: {what}; this is a defect of the program, please report it with the plan"
        )

    def add_digest(self, pieces: Sequence[tuple[Array, Box]], band: Box) -> None:
        """Counts pieces by where they lie in the target, not by where they came from."""
        self.cover += coverage(place for _, place in pieces)
        self.digest ^= self.target_digest.digest(pieces, band)


class PieceSink(_Pieces):
    """Writes each piece straight to its place in a raw target chunk."""

    def __init__(
        self, task: Task, files: OpenFiles, target_digest: TargetDigest, scratch: Bytes
    ) -> None:
        super().__init__(task, target_digest)
        self._files = files
        self._scratch = scratch
        self._itemsize = self.dtype.itemsize
        self._written: list[tuple[Array, Box]] = []
        self._crc = [0] * len(task.targets)
        self._nbytes = [0] * len(task.targets)

    def put(self, band: Array | Interleaved, box: Box) -> None:
        """Writes a band of the source, which lies at ``box``, piece by piece."""
        self._written.clear()
        target, at = self.task.placement.to_target(box), 0
        for piece in self.cutter.pieces(box):
            elements = self._elements(band, piece, at)
            at += elements.nbytes
            self._write(elements, piece, target)
        self.add_digest(self._written, target)

    def close(self) -> list[ChunkPart]:
        """What every chunk got; one that got all of it is finished here, while its file is open."""
        written = zip(self.task.targets, self._crc, self._nbytes, strict=True)
        return [self._closed(target, crc, nbytes) for target, crc, nbytes in written if nbytes]

    def _closed(self, target: TargetChunk, crc: int, nbytes: int) -> ChunkPart:
        if nbytes < target.box.size * self._itemsize:
            return ChunkPart(target.index, crc, nbytes)
        decoded_bytes = math.prod(target.stored_shape) * self._itemsize
        has_trailer = self.task.target_encoding.checksum
        with about_tensor(self.task.placement.target, target.index, self.task.placement.source):
            for place in target.places:
                if place.offset is None:
                    fd, path = open_place(self._files, place), self._files.path(place.file)
                    end_chunk(fd, path, crc if has_trailer else None, decoded_bytes)
        size = raw_bytes(decoded_bytes, has_trailer=has_trailer)
        return ChunkPart(target.index, crc, nbytes, size)

    def _elements(self, band: Array | Interleaved, piece: Piece, at: int) -> Array:
        """A piece as the target wants it: the band's own memory where that is it already."""
        where = piece.in_band
        view = band.view(where) if isinstance(band, Interleaved) else band[where]
        if view is not None and not self._is_cast:
            turned = view.transpose(self.order)
            if turned.flags.c_contiguous:
                return turned
        nbytes = math.prod(piece.shape) * self._itemsize
        if at + nbytes > len(self._scratch):
            raise self.defect(
                f"pieces of more than the {len(self._scratch)} bytes of a band were cut"
            )
        out: Array = self._scratch[at : at + nbytes].view(self.dtype).reshape(piece.shape)
        self.copy(band, where, out)
        return out

    def _write(self, elements: Array, piece: Piece, band: Box) -> None:
        place, target = self.place(piece, band), self.task.targets[piece.number]
        data = elements.reshape(-1).view("u1").data
        places = runs(piece.start, piece.shape, target.stored_shape, self._itemsize)
        with about_tensor(self.task.placement.target, target.index, self.task.placement.source):
            self._check_places(places, piece, target)
            for where in target.places:
                write_runs(self._files, where, data, places)
        self._nbytes[piece.number] += len(data)
        self._crc[piece.number] ^= self._chunk_crc(elements, piece, target, places)
        self._written.append((elements, place))

    def _check_places(
        self, places: Sequence[tuple[int, int]], piece: Piece, target: TargetChunk
    ) -> None:
        """The bytes go where the digest takes them to be: from the piece's first element to its last.

        The places of a box lie evenly around its middle, which gives away any one that is moved.
        """
        first, last = self._ends(piece, target)
        run = places[0][1]
        end = last - run + self._itemsize
        offsets = [offset for offset, _ in places]
        if (
            (offsets[0], offsets[-1]) != (first, end)
            or 2 * sum(offsets) != len(places) * (first + end)
            or run * len(places) != math.prod(piece.shape) * self._itemsize
        ):
            raise self.defect(
                f"a piece of shape {list(piece.shape)} at {list(piece.start)} was to be written in {len(places)} "
                "runs that are not its own"
            )

    def _ends(self, piece: Piece, target: TargetChunk) -> tuple[int, int]:
        """Where the piece's first and last elements lie in the chunk's bytes."""
        first = last = 0
        for start, size, stored in zip(piece.start, piece.shape, target.stored_shape, strict=True):
            first = first * stored + start
            last = last * stored + start + size - 1
        return first * self._itemsize, last * self._itemsize

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
        self, task: Task, output: TaskOutput, target_digest: TargetDigest, arena: Arena
    ) -> None:
        super().__init__(task, target_digest)
        self._output = output
        self._chunks = [self._buffer(t, arena) for t in task.targets]
        self._stored: dict[Index, Array] = {}

    def put(self, band: Array | Interleaved, box: Box) -> None:
        """Copies a band of the source, which lies at ``box``, into the chunks."""
        target = self.task.placement.to_target(box)
        for piece in self.cutter.pieces(box):
            self.place(piece, target)
            self.copy(band, piece.in_band, _inside(self._chunks[piece.number], piece))

    def close(self) -> list[ChunkPart]:
        """Stores each chunk, then sums up what was stored, row by row across all of them."""
        parts = [self._store(t, c) for t, c in zip(self.task.targets, self._chunks, strict=True)]
        unit = self.task.unit
        shape, itemsize = unit.shape, self.dtype.itemsize
        rows = row_bytes(shape, itemsize) or [itemsize]
        stored = self._all_stored()
        for band in bands(shape, len(shape), rows, BAND_BYTES):
            box = band.box(shape).shift(unit.start)
            target = self.task.placement.to_target(box)
            pieces = [
                (_inside(stored[p.number], p), self.place(p, target))
                for p in self.cutter.pieces(box)
            ]
            self.add_digest(pieces, target)
        return parts

    def _all_stored(self) -> list[Array]:
        """What was stored as each target chunk."""
        for target in self.task.targets:
            if target.index not in self._stored:
                raise self.defect(f"chunk {list(target.index)} was not stored")
        return [self._stored[target.index] for target in self.task.targets]

    def _buffer(self, target: TargetChunk, arena: Arena) -> Array:
        nbytes = math.prod(target.stored_shape) * self.dtype.itemsize
        memory = arena.take(nbytes)
        if target.stored_shape != target.box.shape:
            memory[:] = 0
        chunk: Array = memory.view(self.dtype).reshape(target.stored_shape)
        return chunk

    def _store(self, target: TargetChunk, chunk: Array) -> ChunkPart:
        data = chunk.reshape(-1).view("u1")
        stored = store_chunk(self.task, target, data, self._output)
        target = stored.target
        self._stored[target.index] = stored.data.view(self.dtype).reshape(target.stored_shape)
        return stored.part(target.box.size * self.dtype.itemsize)


def _inside(chunk: Array, piece: Piece) -> Array:
    """The piece's elements in its chunk, in the target's axis order."""
    box = Box.full(piece.shape).shift(piece.start)
    inside: Array = chunk[box.slices]
    return inside
