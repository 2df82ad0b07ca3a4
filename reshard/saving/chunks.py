"""The shape of a live tensor's chunks, and which process writes each.

A chunk is written by a process that has all of it. If a chunk spans the shards of several processes, chunks are made
smaller until none does.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec import Struct

from reshard.errors import PlanError
from reshard.formats.chunking import (
    MAX_CHUNKS,
    MERGE_BELOW_BYTES,
    TINY_BYTES,
    chunk_shape,
    serving_chunk,
)
from reshard.geometry.dtypes import storage_bytes
from reshard.geometry.grid import Box, Grid, Index
from reshard.planning.target_layouts import Layout, split
from reshard.saving.given_layouts import bare_spec
from reshard.saving.tensors import LiveTensor


class OwnChunk(Struct, frozen=True):
    """A chunk of a tensor that this process writes."""

    name: str
    index: Index
    box: Box


def storage_chunk(
    tensor: LiveTensor, readers: Sequence[Layout], chunk_bytes: int, process_count: int
) -> tuple[int, ...]:
    """Shape of the tensor's chunks.

    Args:
        readers: layouts of later readers, whose shards should be whole chunks.

    Raises PlanError if only tiny chunks would serve all readers, LayoutError if a layout does not fit
    the tensor.
    """
    grids = _grids(tensor, readers) if readers else []
    for merge_below in _merge_limits(TINY_BYTES if readers else MERGE_BELOW_BYTES):
        chunk = _chunk(tensor, grids, merge_below, chunk_bytes)
        grid = Grid.regular(tensor.shape, chunk)
        if process_count == 1 or all(writers(tensor, box) for box in grid.boxes()):
            return _checked(tensor, grid, chunk)
    raise PlanError(
        f"{tensor.name!r} of shape {list(tensor.shape)}: its shards are on processes in a way that no "
        "regular chunks follow; lay it out evenly over the mesh first"
    )


def _grids(tensor: LiveTensor, readers: Sequence[Layout]) -> list[Grid]:
    """The grids whose boxes should be whole chunks; the shards of a "mod" table are not boxes."""
    grids = [_slices(tensor, layout) for layout in readers]
    is_mod = any(shard.step > 1 for shard in tensor.shards)
    return grids if is_mod else [tensor.chunked_as, *grids]


def _merge_limits(largest: int) -> Iterator[int]:
    while largest:
        yield largest
        largest //= 2
    yield 0


def _chunk(
    tensor: LiveTensor, grids: Sequence[Grid], merge_below: int, chunk_bytes: int
) -> tuple[int, ...]:
    itemsize = storage_bytes(tensor.dtype)
    if not grids:
        return chunk_shape(tensor.chunked_as, itemsize, merge_below, chunk_bytes)
    return serving_chunk(
        grids, itemsize, tensor.name, merge_below=merge_below, split_above=chunk_bytes
    )


def _slices(tensor: LiveTensor, layout: Layout) -> Grid:
    spec = bare_spec(tensor)
    return split(spec, spec, layout).slices


def _checked(tensor: LiveTensor, grid: Grid, chunk: tuple[int, ...]) -> tuple[int, ...]:
    if grid.count > MAX_CHUNKS:
        raise PlanError(
            f"{tensor.name!r} of shape {list(tensor.shape)} would be written in {grid.count} chunks, but at most "
            f"{MAX_CHUNKS} per tensor are allowed, since file systems slow down with more; allow larger ones "
            "(chunk_bytes)"
        )
    return chunk


def writers(tensor: LiveTensor, box: Box) -> tuple[int, ...]:
    """The processes that have all of ``box``, in rising order."""
    found: tuple[int, ...] | None = None
    for shard in tensor.touching(box):
        if found is None:
            found = shard.holders
        elif found is not shard.holders and found != shard.holders:
            found = tuple(p for p in found if p in shard.holders)
    return found or ()


def own_chunks(
    tensors: Sequence[tuple[LiveTensor, Grid]], process: int, process_count: int
) -> list[OwnChunk]:
    """The chunks that this process writes.

    If several processes have a chunk, the one with the fewest bytes so far writes it; among equals, the lowest. Every
    process comes to the same answer.
    """
    mine: list[OwnChunk] = []
    loads = [0] * process_count
    for tensor, grid in tensors:
        itemsize = storage_bytes(tensor.dtype)
        for index in grid.indices():
            box = grid.box(index)
            owner = _least_loaded(tensor, box, loads)
            loads[owner] += box.size * itemsize
            if owner == process:
                mine.append(OwnChunk(tensor.name, index, box))
    return mine


def _least_loaded(tensor: LiveTensor, box: Box, loads: Sequence[int]) -> int:
    if len(loads) == 1:
        return 0
    return min(writers(tensor, box), key=lambda process: (loads[process], process))
