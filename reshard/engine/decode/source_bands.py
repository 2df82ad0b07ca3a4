"""Decodes a task's source chunks band by band; chunks that lie side by side count as one.

The chunks of a weave are decoded in lock step, and their bands are put side by side in rows as wide as all of
them. Other chunks are decoded one after the other. Each is decoded in a stream, band by band, or at once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from reshard.engine.decode.chunk_decoder import ChunkDecoder, StoredChunks, Whole, chunk_bytes
from reshard.engine.decode.interleave import Interleaved, interleaved_of
from reshard.engine.task import SourceChunk, Task, source_element_type
from reshard.formats.codecs import encoded_room
from reshard.geometry.bands import Band, band_capacity, bands, row_bytes
from reshard.geometry.box import Box
from reshard.geometry.dtypes import storage_bytes

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from reshard.engine.buffers import Bytes

    Array = npt.NDArray[Any]
    Part = tuple[Array, Box]
    """Elements of the source and the box they fill, in the placement's coordinates."""


def is_interleaved(task: Task) -> bool:
    """Whether the source's chunks are laid side by side for one target at least."""
    return any(t.strategy == "weave" for t in task.all)


def groups(task: Task) -> list[tuple[SourceChunk, ...]]:
    """Source chunks that are decoded in lock step: all of a weave, else one after the other."""
    return [task.sources] if is_interleaved(task) else [(s,) for s in task.sources]


class DecoderMemory(Struct, frozen=True):
    """What a group of chunks is decoded into.

    Attributes:
        decoded: the bands of all decoders, or all of their chunks, one behind the other.
        encoded: for what is read of one chunk, where chunks are decoded at once; else nothing. Shares its place
            with what is in use while bands pass.
        rows: bands of several decoders, side by side; nothing for a single one.
    """

    decoded: Bytes
    encoded: Bytes
    rows: Bytes


def decoded(
    task: Task, group: Sequence[SourceChunk], memory: DecoderMemory, *, in_rows: bool
) -> Iterator[tuple[Array | Interleaved, Box]]:
    """The wanted part of each band of a group of chunks, and its box in the placement's coordinates.

    Unless ``in_rows`` is set, the bands of chunks of one shape stay apart, as an Interleaved.
    """
    dtype = source_element_type(task)
    with ExitStack() as stack:
        decoders = [
            stack.enter_context(closing(_decoder(task, chunk, whole)))
            for chunk, whole in zip(group, _wholes(task, group, memory), strict=True)
        ]
        for band in _group_bands(task, group, decoders[0].part):
            if decoders[0].is_behind(band):
                return
            parts = _read(decoders, band, memory.decoded, dtype)
            if len(parts) == 1:
                yield parts[0]
            elif parts:
                yield _together(parts, memory, in_rows)
        for decoder in decoders:
            decoder.check_end()


def _together(
    parts: Sequence[Part], memory: DecoderMemory, in_rows: bool
) -> tuple[Array | Interleaved, Box]:
    """The parts of all decoders as one band as wide as all of them."""
    combined = _combined_box(parts)
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


def _wholes(
    task: Task, group: Sequence[SourceChunk], memory: DecoderMemory
) -> Sequence[Whole | None]:
    """Where in ``memory`` each chunk of a group is decoded at once; None for each that is streamed."""
    if not task.at_once:
        return [None] * len(group)
    ends = accumulate((_chunk_bytes(task, chunk) for chunk in group), initial=0)
    return [Whole(memory.decoded[start:end], memory.encoded) for start, end in pairwise(ends)]


def _chunk_bytes(task: Task, chunk: SourceChunk) -> int:
    return chunk_bytes(chunk, task.placement.source_dtype)


def _decoder(task: Task, chunk: SourceChunk, whole: Whole | None) -> ChunkDecoder:
    placement = task.placement
    stored = StoredChunks(placement.source, placement.source_dtype, task.source_encoding, task.fill)
    box = placement.from_source(chunk.box)
    return ChunkDecoder(stored, chunk, box.intersect(task.unit) or box, box.start, whole)


def _read(
    decoders: Sequence[ChunkDecoder], band: Band, memory: Bytes, dtype: np.dtype[Any]
) -> list[Part]:
    """The wanted part of each decoder's band; those of streams are one behind the other in ``memory``."""
    parts: list[Part] = []
    at = 0
    for decoder in decoders:
        nbytes, part = decoder.read(band, memory[at:], dtype)
        at += nbytes
        if part is not None:
            parts.append(part)
    return parts


def _combined_box(parts: Sequence[Part]) -> Box:
    """What parts that lie side by side cover together."""
    start = tuple(map(min, zip(*(box.start for _, box in parts), strict=True)))
    stop = tuple(map(max, zip(*(box.stop for _, box in parts), strict=True)))
    return Box(start, stop)


def _group_bands(task: Task, group: Sequence[SourceChunk], part: Box | None) -> Iterator[Band]:
    """``part`` is what is wanted of the first chunk: all have it alike in the dimensions that are cut."""
    shape, open_dim, rows = _group_shape(task, group)
    return bands(shape, open_dim, rows, task.band_bytes, part)


def decoder_bytes_of(task: Task, group: Sequence[SourceChunk]) -> int:
    """Memory that the decoders of a group take together: their bands, or all of each chunk."""
    if task.at_once:
        return sum(_chunk_bytes(task, chunk) for chunk in group)
    return group_capacity(task, group)


def encoded_bytes(task: Task) -> int:
    """Memory for what is read of any one chunk of the task, where chunks are decoded at once."""
    if not task.at_once:
        return 0
    largest = max((_chunk_bytes(task, chunk) for chunk in task.sources), default=0)
    return encoded_room(task.source_encoding, largest)


def group_capacity(task: Task, group: Sequence[SourceChunk]) -> int:
    """Bytes of a group's largest band, all chunks together."""
    shape, open_dim, rows = _group_shape(task, group)
    return band_capacity(shape, open_dim, rows, task.band_bytes)


def _group_shape(
    task: Task, group: Sequence[SourceChunk]
) -> tuple[tuple[int, ...], int, list[int]]:
    """Common leading shape, first dimension along which the chunks differ, and bytes per row of all together."""
    first = group[0]
    rank = len(first.stored_shape)
    open_dim = min((_first_difference(first.index, s.index) for s in group[1:]), default=rank)
    itemsize = storage_bytes(task.placement.source_dtype)
    rows = [sum(r) for r in zip(*(row_bytes(s.stored_shape, itemsize) for s in group), strict=True)]
    return first.stored_shape, open_dim, rows or [itemsize]


def _first_difference(a: Sequence[int], b: Sequence[int]) -> int:
    return next(d for d, (i, j) in enumerate(zip(a, b, strict=True)) if i != j)
