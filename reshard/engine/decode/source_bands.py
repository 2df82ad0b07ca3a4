"""Decodes a task's source chunks band by band; the bands of chunks side by side form one.

The chunks of a weave are decoded in lock step, and their bands are put side by side in rows as wide as all of
them. Other chunks are decoded one after the other. Each is decoded in a stream, band by band, or at once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
from msgspec import Struct

from reshard.engine.decode.chunk_reader import ChunkBuffers, ChunkFacts, ChunkReader, chunk_bytes
from reshard.engine.task import SourceRead, Task, source_element_type
from reshard.formats.codecs import encoded_room
from reshard.formats.contents import SourceChunk
from reshard.geometry.dtypes import storage_bytes
from reshard.geometry.grid import Box
from reshard.geometry.row_major import Band, band_capacity, bands, row_bytes
from reshard.geometry.turned_copy import turned_copy

if TYPE_CHECKING:
    import numpy.typing as npt

    from reshard.engine.buffers import Bytes

    Array = npt.NDArray[Any]
    Part = tuple[Array, Box]
    """Elements of the source and the box of it that they fill."""


class Interleaved:
    """Bands of one shape, one of each chunk, that together form one band as wide as all of them."""

    def __init__(self, bands: Array, dim: int) -> None:
        """``bands`` has the shape (number of bands, ...); they are side by side along ``dim`` of a band, in order."""
        self._bands = bands
        self._dim = dim
        self._width: int = bands.shape[1 + dim]

    @property
    def nbytes(self) -> int:
        return self._bands.nbytes

    def view(self, where: tuple[slice, ...]) -> Array | None:
        """The elements at ``where`` of the combined band (no dimension is empty); None unless a single band has them all."""
        first, last = self._ends(where)
        return self._part(first, where) if first == last else None

    def copy(self, where: tuple[slice, ...], out: Array) -> None:
        """Fills ``out`` with the elements at ``where`` of the combined band (no dimension is empty)."""
        dim, width, along = self._dim, self._width, where[self._dim]
        first, last = self._ends(where)
        if along.start % width == 0 and along.stop % width == 0:
            # One copy, since the interpreter's lock is taken again after each.
            bands = self._bands[(slice(first, last + 1), *_along(where, dim, slice(None)))]
            shape = (*out.shape[:dim], len(bands), width, *out.shape[dim + 1 :])
            turned_copy(out.reshape(shape), np.moveaxis(bands, 0, dim))
            return
        for band in range(first, last + 1):
            start, stop = max(along.start, band * width), min(along.stop, (band + 1) * width)
            there = (slice(None),) * dim + (slice(start - along.start, stop - along.start),)
            turned_copy(out[there], self._part(band, _along(where, dim, slice(start, stop))))

    def _ends(self, where: tuple[slice, ...]) -> tuple[int, int]:
        """The first band and the last."""
        along = where[self._dim]
        return along.start // self._width, (along.stop - 1) // self._width

    def _part(self, band: int, where: tuple[slice, ...]) -> Array:
        along, before = where[self._dim], band * self._width
        part: Array = self._bands[band][
            _along(where, self._dim, slice(along.start - before, along.stop - before))
        ]
        return part


def _along(where: tuple[slice, ...], dim: int, along: slice) -> tuple[slice, ...]:
    return (*where[:dim], along, *where[dim + 1 :])


def interleaved_of(
    parts: Sequence[tuple[Array, Box]], memory: Bytes, combined: Box
) -> Interleaved | None:
    """Parts of ``combined``, views of ``memory``, as one Interleaved.

    None if they do not follow one another along one dimension in one shape, or are unevenly spaced.
    """
    first, shape = parts[0][1], parts[0][0].shape
    across = [
        d
        for d, (one, all_of_them) in enumerate(zip(shape, combined.shape, strict=True))
        if one != all_of_them
    ]
    if len(across) != 1:
        return None
    dim = across[0]
    start, width = first.start[dim], shape[dim]
    is_even = all(
        other.shape == shape and box.start[dim] == start + number * width
        for number, (other, box) in enumerate(parts)
    )
    bands = _evenly_spaced([elements for elements, _ in parts], memory) if is_even else None
    return None if bands is None else Interleaved(bands, dim)


def _evenly_spaced(arrays: Sequence[Array], memory: Bytes) -> Array | None:
    """Views of ``memory`` of one shape as one array; None if they lie at uneven distances."""
    first = arrays[0]
    places = [_address(array) for array in arrays]
    step = places[1] - places[0]
    if any(b - a != step for a, b in pairwise(places)) or step <= 0:
        return None
    return np.ndarray(
        (len(arrays), *first.shape),
        first.dtype,
        memory.data,
        places[0] - _address(memory),
        (step, *first.strides),
    )


def _address(array: Array) -> int:
    address: int = array.__array_interface__["data"][0]
    return address


def is_interleaved(task: Task) -> bool:
    """True if the source's chunks are laid side by side for one target at least."""
    return any(unit.strategy == "weave" for unit in task.units)


def groups(task: Task, read: SourceRead) -> list[tuple[SourceChunk, ...]]:
    """Source chunks that are decoded in lock step: all of a weave, else one after the other."""
    return [read.chunks] if is_interleaved(task) else [(chunk,) for chunk in read.chunks]


class DecoderMemory(Struct, frozen=True):
    """The memory into which a group of chunks is decoded.

    Attributes:
        decoded: the bands of all readers, or all of their chunks, one behind the other.
        encoded: for the encoded bytes of one chunk, if chunks are decoded at once; else empty. It overlaps
            memory that is in use only while bands pass.
        rows: bands of several readers, side by side; empty for a single one.
    """

    decoded: Bytes
    encoded: Bytes
    rows: Bytes


def decoded(
    task: Task,
    read: SourceRead,
    group: Sequence[SourceChunk],
    memory: DecoderMemory,
    *,
    in_rows: bool,
) -> Iterator[tuple[Array | Interleaved, Box]]:
    """The wanted part of each band of a group of chunks, and its box of the source.

    Unless ``in_rows`` is set, the bands of chunks of one shape stay apart, as an Interleaved.
    """
    first = read.takes[0]
    dtype = source_element_type(task.units[first.unit].pieces[first.piece])
    with ExitStack() as stack:
        readers = [
            stack.enter_context(closing(_opened(read, chunk, dtype, at_once)))
            for chunk, at_once in zip(group, _at_once(task, read, group, memory), strict=True)
        ]
        for band in _group_bands(task, read, group, readers[0].part):
            if readers[0].is_behind(band):
                return
            parts = _read(readers, band, memory.decoded)
            if len(parts) == 1:
                yield parts[0]
            elif parts:
                yield _together(parts, memory, in_rows)
        for reader in readers:
            reader.check_end()


def _together(
    parts: Sequence[Part], memory: DecoderMemory, in_rows: bool
) -> tuple[Array | Interleaved, Box]:
    """The parts of all readers as one band as wide as all of them."""
    combined = Box.around([box for _, box in parts])
    interleaved = interleaved_of(parts, memory.decoded, combined)
    if interleaved is not None and not in_rows:
        return interleaved, combined
    dtype = parts[0][0].dtype
    whole: Array = memory.rows[: combined.size * dtype.itemsize].view(dtype).reshape(combined.shape)
    if interleaved is not None:
        interleaved.copy(tuple(slice(0, n) for n in combined.shape), whole)
    else:
        for elements, box in parts:
            whole[box.relative_to(combined.start).slices] = elements
    return whole, combined


def _at_once(
    task: Task, read: SourceRead, group: Sequence[SourceChunk], memory: DecoderMemory
) -> Sequence[ChunkBuffers | None]:
    """The place in ``memory`` of each chunk of a group that is decoded at once; None for each that is streamed."""
    if not task.at_once:
        return [None] * len(group)
    ends = accumulate((chunk_bytes(chunk, read.dtype) for chunk in group), initial=0)
    return [ChunkBuffers(memory.decoded[a:b], memory.encoded) for a, b in pairwise(ends)]


def _opened(
    read: SourceRead, chunk: SourceChunk, dtype: np.dtype[Any], at_once: ChunkBuffers | None
) -> ChunkReader:
    wanted = chunk.box.intersect(read.box) or chunk.box
    return ChunkReader(ChunkFacts.of_read(read), chunk, wanted, dtype, at_once)


def _read(readers: Sequence[ChunkReader], band: Band, memory: Bytes) -> list[Part]:
    """The wanted part of each reader's band; bands of streams are one behind the other in ``memory``."""
    parts: list[Part] = []
    at = 0
    for reader in readers:
        nbytes, part = reader.read_band(band, memory[at:])
        at += nbytes
        if part is not None:
            parts.append(part)
    return parts


def _group_bands(
    task: Task, read: SourceRead, group: Sequence[SourceChunk], part: Box | None
) -> Iterator[Band]:
    """The bands of a group. ``part`` is the wanted part of the first chunk; it is the same for all in the dimensions that are cut."""
    shape, open_dim, rows = _group_shape(read, group)
    return bands(shape, open_dim, rows, task.band_bytes, part)


def decoder_bytes_of(task: Task, read: SourceRead, group: Sequence[SourceChunk]) -> int:
    """Memory that the readers of a group take together: their bands, or all of each chunk."""
    if task.at_once:
        return sum(chunk_bytes(chunk, read.dtype) for chunk in group)
    return group_capacity(task, read, group)


def encoded_bytes(task: Task, read: SourceRead) -> int:
    """Memory for the encoded bytes of any one chunk of a read, if chunks are decoded at once."""
    if not task.at_once:
        return 0
    largest = max((chunk_bytes(chunk, read.dtype) for chunk in read.chunks), default=0)
    return encoded_room(read.encoding, largest)


def group_capacity(task: Task, read: SourceRead, group: Sequence[SourceChunk]) -> int:
    """Bytes of a group's largest band, all chunks together."""
    shape, open_dim, rows = _group_shape(read, group)
    return band_capacity(shape, open_dim, rows, task.band_bytes)


def _group_shape(
    read: SourceRead, group: Sequence[SourceChunk]
) -> tuple[tuple[int, ...], int, list[int]]:
    """Common leading shape, first dimension along which the chunks differ, and bytes per row of all together."""
    first = group[0]
    rank = len(first.stored_shape)
    open_dim = min((_first_difference(first.index, s.index) for s in group[1:]), default=rank)
    itemsize = storage_bytes(read.dtype)
    rows = [sum(r) for r in zip(*(row_bytes(s.stored_shape, itemsize) for s in group), strict=True)]
    return first.stored_shape, open_dim, rows or [itemsize]


def _first_difference(a: Sequence[int], b: Sequence[int]) -> int:
    return next(d for d, (i, j) in enumerate(zip(a, b, strict=True)) if i != j)
