"""Sinks: put the slots of a band into raw files at once, or into chunks held in memory.

The slots for the target's digest are noted when they are handed to the file system, and
summed up afterwards: so the digest reveals a piece that went elsewhere or changed.

``ChunkSlots`` cuts a band into slots of target chunks. A band differs from the one before in one dimension only, so that the cuts of each
dimension are kept: the slots of a band are then the product of a few short lists.
"""

from __future__ import annotations

import itertools
import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from operator import add
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from reshard.checksums.sums import NOTHING, Sums, coverage
from reshard.checksums.tensor_digest import CRC32C, linear_of_box
from reshard.engine.cast import cast_into
from reshard.engine.decode.source_bands import Interleaved
from reshard.engine.error_context import about_tensor
from reshard.engine.output import Keep, TaskOutput
from reshard.engine.task import CastStats, StoredChunk, TargetChunk, Unit, target_element_type
from reshard.engine.write.chunk_files import (
    end_chunk,
    open_place,
    raw_bytes,
    reserve_chunk,
    store_chunk,
    write_runs,
)
from reshard.engine.write.target_digest import TargetDigest
from reshard.errors import VerificationError
from reshard.geometry.grid import Box, Index
from reshard.geometry.row_major import bands, row_bytes
from reshard.geometry.turned_copy import turned_copy
from reshard.planning.piece import Piece, inverse
from reshard.planning.task_cost import BAND_BYTES
from reshard.storage.local.files import OpenFiles

if TYPE_CHECKING:
    import numpy.typing as npt

    from reshard.engine.buffers import Arena, Bytes

    Array = npt.NDArray[Any]


class Slot(NamedTuple):
    """The part of a band that falls into one target chunk.

    Attributes:
        number: position of the chunk among the unit's.
        in_band: index of the part in the band, in the axis order of the target's view.
        start: its first index within the stored chunk.
        shape: its shape in the chunk.
    """

    number: int
    in_band: tuple[slice, ...]
    start: tuple[int, ...]
    shape: tuple[int, ...]


class _Segment(NamedTuple):
    """One dimension of a slot: the chunk's share of its number, the range in the box, the start in the chunk."""

    number: int
    in_box: slice
    start: int
    size: int


class ChunkSlots:
    """Cuts boxes of the target of one unit at the edges of its chunks."""

    def __init__(self, unit: Unit) -> None:
        grid = unit.grid
        self._cuts = [
            [c + origin for c in cuts]
            for cuts, origin in zip(grid.cuts, unit.box.start, strict=True)
        ]
        self._strides = [math.prod(grid.parts[d + 1 :]) for d in range(len(grid.parts))]
        self._chunk_starts = [
            [unit.chunks[i * stride].box.start[d] for i in range(parts)]
            for d, (stride, parts) in enumerate(zip(self._strides, grid.parts, strict=True))
        ]
        self._known: list[dict[tuple[int, int], list[_Segment]]] = [{} for _ in grid.parts]

    def slots(self, box: Box) -> Iterator[Slot]:
        """The slots of a box of the target, in row-major order of the chunks; ``in_band`` is counted from its start."""
        along = [
            self._along(d, a, b) for d, (a, b) in enumerate(zip(box.start, box.stop, strict=True))
        ]
        for parts in itertools.product(*along):
            yield Slot(
                sum([p.number for p in parts]),
                tuple([p.in_box for p in parts]),
                tuple([p.start for p in parts]),
                tuple([p.size for p in parts]),
            )

    def slots_of(self, piece: Piece, box: Box) -> Iterator[Slot]:
        """The slots of a box of a piece."""
        moved = piece.in_target(box)
        if piece.target_view is None:
            return self.slots(moved)
        return self._viewed(piece, box, moved)

    def _viewed(self, piece: Piece, box: Box, moved: Box) -> Iterator[Slot]:
        """The slots if dimensions of the target are split: a part of a chunk is one box of the view, or a few."""
        view = piece.target_view
        for place, _ in piece.target_boxes(box):
            for slot in self.slots(place):
                begins = [p + w.start for p, w in zip(place.start, slot.in_band, strict=True)]
                whole = Box.full(slot.shape).shift(begins)
                for inside, part in () if view is None else view.parts(whole):
                    yield Slot(
                        slot.number,
                        tuple(map(slice, *_ends(part.relative_to(moved.start)))),
                        inside.relative_to(begins).shift(slot.start).start,
                        inside.shape,
                    )

    def _along(self, dim: int, start: int, stop: int) -> list[_Segment]:
        known = self._known[dim]
        if (start, stop) not in known:
            if len(known) > 64:
                known.clear()
            known[start, stop] = list(self._segments(dim, start, stop))
        return known[start, stop]

    def _segments(self, dim: int, start: int, stop: int) -> Iterator[_Segment]:
        cuts = self._cuts[dim]
        for part in range(bisect_right(cuts, start) - 1, bisect_left(cuts, stop)):
            first, last = max(cuts[part], start), min(cuts[part + 1], stop)
            in_chunk = first - self._chunk_starts[dim][part]
            in_box = slice(first - start, last - start)
            yield _Segment(part * self._strides[dim], in_box, in_chunk, last - first)


def _ends(box: Box) -> tuple[tuple[int, ...], tuple[int, ...]]:
    return box.start, box.stop


def runs(
    start: Sequence[int], shape: Sequence[int], stored: Sequence[int], itemsize: int
) -> list[tuple[int, int]]:
    """The place of a box in a row-major chunk: offset and length in bytes of each contiguous run.

    >>> runs((2, 0), (2, 8), (8, 8), 4), runs((2, 4), (2, 4), (8, 8), 4)
    ([(64, 64)], [(80, 16), (112, 16)])
    """
    if shape[1:] == stored[1:]:
        row = math.prod(stored[1:]) * itemsize
        return [(start[0] * row, shape[0] * row)] if shape else [(0, row)]
    inner = len(shape) - 1
    run = itemsize
    while inner > 0 and shape[inner] == stored[inner]:
        run *= shape[inner]
        inner -= 1
    run *= math.prod(shape[: inner + 1][-1:])
    stride, offsets = run_stride(stored, inner, itemsize), [0]
    for dim in range(inner, -1, -1):
        first = start[dim] * stride
        steps = [first] if dim == inner else range(first, first + shape[dim] * stride, stride)
        offsets = [step + offset for step in steps for offset in offsets]
        stride *= stored[dim]
    return [(offset, run) for offset in offsets]


def run_stride(stored: Sequence[int], dim: int, itemsize: int) -> int:
    """Bytes from one index of ``dim`` to the next."""
    return math.prod(stored[dim + 1 :]) * itemsize


class _Slots:
    """The common part of both sinks: cutting bands, and copying elements into target memory."""

    def __init__(self, unit: Unit, target_digest: TargetDigest) -> None:
        self.unit = unit
        self.cast = CastStats()
        self.sums = NOTHING
        self.target_digest = target_digest
        self.chunk_slots = ChunkSlots(unit)
        self.dtype = target_element_type(unit.pieces[0])
        self.source = next((p.source for p in unit.pieces if p.source), unit.name)

    def copy(
        self, piece: Piece, band: Array | Interleaved, where: tuple[slice, ...], out: Array
    ) -> None:
        """Fills ``out``, a part of the target, with the elements at ``where`` of a band of a piece."""
        if piece.target_view is not None:
            split = out.reshape([along.stop - along.start for along in where])
            if not np.may_share_memory(split, out):  # a copy would be filled, and nothing written
                raise self.defect(f"a slot of shape {list(out.shape)} was to be split by a copy")
            out = split
        back = inverse(piece.axis_order)
        turned, there = out.transpose(back), tuple(map(where.__getitem__, back))
        if isinstance(band, Interleaved):
            band.copy(there, turned)
        elif piece.is_computed:
            lost = cast_into(
                turned, band[there], saturate=piece.saturate, arithmetic=piece.arithmetic
            )
            self.cast = self.cast + lost
        else:
            turned_copy(turned, band[there])

    def place(self, slot: Slot, band: Box) -> Box:
        """The box of a slot of ``band`` in the target tensor: within the band, and within its chunk."""
        chunk = self.unit.chunks[slot.number].box
        start = tuple(map(add, chunk.start, slot.start))
        place = Box(start, tuple(map(add, start, slot.shape)))
        if not (chunk.contains(place) and band.contains(place)):
            raise self.defect(f"a piece was to be put at {place}, outside of {band} or of {chunk}")
        return place

    def defect(self, what: str) -> VerificationError:
        """The error, to be raised, for a state that no defect of the disk can cause."""
        return VerificationError(
            f"{self.unit.name!r}: {what}; this is a defect of the program, please report it with the plan"
        )

    def add_digest(self, parts: Sequence[tuple[Array, Box]], band: Box) -> None:
        """Counts slots by their places in the target, not by their origins."""
        digest, placed = self.target_digest.digest(parts, band), self.target_digest.placed(parts)
        written = coverage(box for _, box in parts)
        self.sums = self.sums.merge(Sums(target=digest, written=written, placed=placed))


class PieceSink(_Slots):
    """Writes each slot straight to its place in a raw target chunk.

    ``is_stored``: the bytes are there already, and are read there (``movers.passthrough``). ``keep``: takes each slot
    if the target has no files.
    """

    def __init__(
        self,
        unit: Unit,
        files: OpenFiles,
        target_digest: TargetDigest,
        scratch: Bytes,
        *,
        is_stored: bool = False,
        keep: Keep | None = None,
    ) -> None:
        super().__init__(unit, target_digest)
        self._files = files
        self._keep = keep
        self._scratch = scratch
        self._is_stored = is_stored
        self._itemsize = self.dtype.itemsize
        self._written: list[tuple[Array, Box]] = []
        self._reserved: set[int] = set()
        self._crc = [0] * len(unit.chunks)
        self._nbytes = [0] * len(unit.chunks)

    def put(self, piece: Piece, band: Array | Interleaved, box: Box) -> None:
        """Writes a band at ``box`` of a piece, slot by slot."""
        self._written.clear()
        target, at = piece.to_target(box), 0
        for slot in self.chunk_slots.slots_of(piece, box):
            elements = self._elements(piece, band, slot, at)
            at += elements.nbytes
            self._write(elements, slot, target)
        self.add_digest(self._written, target)

    def close(self) -> list[StoredChunk]:
        """The stored part of every chunk; a complete chunk is finished here, while its file is open."""
        written = zip(self.unit.chunks, self._crc, self._nbytes, strict=True)
        return [self._closed(target, crc, nbytes) for target, crc, nbytes in written if nbytes]

    def _closed(self, target: TargetChunk, crc: int, nbytes: int) -> StoredChunk:
        if nbytes < target.box.size * self._itemsize:
            return StoredChunk(target.index, crc, nbytes)
        decoded_bytes = math.prod(target.stored_shape) * self._itemsize
        has_trailer = self.unit.encoding.checksum
        with about_tensor(self.unit.name, target.index, self.source):
            for place in target.places:
                if place.offset is None:
                    fd, path = open_place(self._files, place), self._files.path(place.file)
                    end_chunk(fd, path, crc if has_trailer else None, decoded_bytes)
        size = raw_bytes(decoded_bytes, has_trailer=has_trailer)
        return StoredChunk(target.index, crc, nbytes, size)

    def _elements(self, piece: Piece, band: Array | Interleaved, slot: Slot, at: int) -> Array:
        """The elements of a slot as the target wants them: the band's own memory if they already lie so."""
        where = tuple(map(slot.in_band.__getitem__, inverse(piece.axis_order)))
        view = band.view(where) if isinstance(band, Interleaved) else band[where]
        if view is not None and not piece.is_computed:
            turned = view.transpose(piece.axis_order)
            if turned.flags.c_contiguous:
                return turned.reshape(slot.shape)
        nbytes = math.prod(slot.shape) * self._itemsize
        if at + nbytes > len(self._scratch):
            raise self.defect(
                f"pieces of more than the {len(self._scratch)} bytes of a band were cut"
            )
        out: Array = self._scratch[at : at + nbytes].view(self.dtype).reshape(slot.shape)
        self.copy(piece, band, slot.in_band, out)
        return out

    def _write(self, elements: Array, slot: Slot, band: Box) -> None:
        place, target = self.place(slot, band), self.unit.chunks[slot.number]
        data = elements.reshape(-1).view("u1").data
        places = runs(slot.start, slot.shape, target.stored_shape, self._itemsize)
        with about_tensor(self.unit.name, target.index, self.source):
            self._check_places(places, slot, target)
            if slot.number not in self._reserved and not self._is_stored:
                self._reserved.add(slot.number)
                reserve_chunk(self._files, target, self._itemsize)
            for where in () if self._is_stored else target.places:
                write_runs(self._files, where, data, places)
            if self._keep is not None:
                self._keep(self.unit.name, place, elements)
        self._nbytes[slot.number] += len(data)
        self._crc[slot.number] ^= self._chunk_crc(elements, slot, target, places)
        self._written.append((elements, place))

    def _check_places(
        self, places: Sequence[tuple[int, int]], slot: Slot, target: TargetChunk
    ) -> None:
        """Checks that the bytes go where the digest takes them to be: from the slot's first element to its last.

        The places of a box lie evenly around its middle, which reveals any one that is moved.
        """
        first, last = self._ends(slot, target)
        run = places[0][1]
        end = last - run + self._itemsize
        offsets = [offset for offset, _ in places]
        if (
            (offsets[0], offsets[-1]) != (first, end)
            or 2 * sum(offsets) != len(places) * (first + end)
            or run * len(places) != math.prod(slot.shape) * self._itemsize
        ):
            raise self.defect(
                f"a piece of shape {list(slot.shape)} at {list(slot.start)} was to be written in {len(places)} "
                "runs that are not its own"
            )

    def _ends(self, slot: Slot, target: TargetChunk) -> tuple[int, int]:
        """The offsets of the slot's first and last elements in the chunk's bytes."""
        first = last = 0
        for start, size, stored in zip(slot.start, slot.shape, target.stored_shape, strict=True):
            first = first * stored + start
            last = last * stored + start + size - 1
        return first * self._itemsize, last * self._itemsize

    def _chunk_crc(
        self, elements: Array, slot: Slot, target: TargetChunk, places: Sequence[tuple[int, int]]
    ) -> int:
        """The contribution of the slot to the CRC32C of its chunk."""
        if len(places) == 1:
            offset, nbytes = places[0]
            stored_bytes = math.prod(target.stored_shape) * self._itemsize
            return CRC32C.shift(CRC32C.linear(elements), stored_bytes - offset - nbytes)
        local = Box.full(slot.shape).shift(slot.start)
        return linear_of_box(CRC32C, elements, local, target.stored_shape)


class ChunkSink(_Slots):
    """Assembles target chunks in memory, then encodes and writes each whole."""

    def __init__(
        self, unit: Unit, output: TaskOutput, target_digest: TargetDigest, arena: Arena
    ) -> None:
        super().__init__(unit, target_digest)
        self._output = output
        self._chunks = [self._buffer(t, arena) for t in unit.chunks]
        self._stored: dict[Index, Array] = {}

    def put(self, piece: Piece, band: Array | Interleaved, box: Box) -> None:
        """Copies a band at ``box`` of a piece into the chunks."""
        target = piece.to_target(box)
        for slot in self.chunk_slots.slots_of(piece, box):
            self.place(slot, target)
            self.copy(piece, band, slot.in_band, _inside(self._chunks[slot.number], slot))

    def close(self) -> list[StoredChunk]:
        """Stores each chunk, then sums up the stored elements, row by row across all of them."""
        stored_chunks = [
            self._store(t, c) for t, c in zip(self.unit.chunks, self._chunks, strict=True)
        ]
        unit = self.unit.box
        shape, itemsize = unit.shape, self.dtype.itemsize
        rows = row_bytes(shape, itemsize) or [itemsize]
        stored = self._all_stored()
        for band in bands(shape, len(shape), rows, BAND_BYTES):
            target = band.box(shape).shift(unit.start)
            parts = [
                (_inside(stored[slot.number], slot), self.place(slot, target))
                for slot in self.chunk_slots.slots(target)
            ]
            self.add_digest(parts, target)
        return stored_chunks

    def _all_stored(self) -> list[Array]:
        """The elements that were stored as each target chunk."""
        for target in self.unit.chunks:
            if target.index not in self._stored:
                raise self.defect(f"chunk {list(target.index)} was not stored")
        return [self._stored[target.index] for target in self.unit.chunks]

    def _buffer(self, target: TargetChunk, arena: Arena) -> Array:
        nbytes = math.prod(target.stored_shape) * self.dtype.itemsize
        memory = arena.take(nbytes)
        if target.stored_shape != target.box.shape:
            memory[:] = 0
        chunk: Array = memory.view(self.dtype).reshape(target.stored_shape)
        return chunk

    def _store(self, target: TargetChunk, chunk: Array) -> StoredChunk:
        data = chunk.reshape(-1).view("u1")
        encoded = store_chunk(self.unit, target, data, self._output)
        target = encoded.target
        self._stored[target.index] = encoded.data.view(self.dtype).reshape(target.stored_shape)
        return encoded.stored


def _inside(chunk: Array, slot: Slot) -> Array:
    """The slot's elements in its chunk."""
    box = Box.full(slot.shape).shift(slot.start)
    inside: Array = chunk[box.slices]
    return inside
