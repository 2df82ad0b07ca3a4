"""What is decoded of a task's source chunks, band by band, chunks that lie side by side as one.

Chunks of a weave are decoded in lock step, each a lane, and their bands laid side by side in rows as wide
as all of them; others come one after the other.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from typing import TYPE_CHECKING, Any

from reshard.engine.bands import Band, band_capacity, bands, row_bytes
from reshard.engine.lanes import Lane, StoredChunks
from reshard.engine.sinks import Part, source_element_type
from reshard.engine.task import SourceChunk, Task
from reshard.engine.woven import Woven
from reshard.layout.box import Box
from reshard.layout.dtypes import storage_bytes

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from reshard.engine.buffers import Bytes

    Array = npt.NDArray[Any]


def is_woven(task: Task) -> bool:
    """Whether the source's chunks are laid side by side for one target at least."""
    return any(t.strategy == "weave" for t in task.all)


def groups(task: Task) -> list[tuple[SourceChunk, ...]]:
    """Source chunks that are decoded in lock step: all of a weave, else one after the other."""
    return [task.sources] if is_woven(task) else [(s,) for s in task.sources]


def decoded(
    task: Task, group: Sequence[SourceChunk], memory: Bytes, rows: Bytes, *, in_rows: bool
) -> Iterator[tuple[Array | Woven, Box]]:
    """What is wanted of each band of a group of chunks, and its box in the placement's coordinates.

    Unless it is wanted ``in_rows``, a band of lanes of one shape is left to be taken apart as they are.
    """
    dtype = source_element_type(task)
    with ExitStack() as stack:
        lanes = [stack.enter_context(closing(_lane(task, chunk))) for chunk in group]
        for band in _group_bands(task, group, lanes[0].part):
            if lanes[0].is_behind(band):
                return
            nbytes, parts = _read(lanes, band, memory, dtype)
            if len(parts) == 1:
                yield parts[0]
            elif parts:
                yield _together(parts, memory[:nbytes], rows, in_rows)
        for lane in lanes:
            lane.check_end()


def _together(
    parts: Sequence[Part], lanes: Bytes, rows: Bytes, in_rows: bool
) -> tuple[Array | Woven, Box]:
    """The lanes' parts, which lie one behind the other in ``lanes``, as one band as wide as all of them."""
    joint = _joint_box(parts)
    woven = _woven(parts, lanes, joint)
    if woven is not None and not in_rows:
        return woven, joint
    dtype = parts[0][0].dtype
    whole: Array = rows[: joint.size * dtype.itemsize].view(dtype).reshape(joint.shape)
    if woven is not None:
        woven.copy(tuple(slice(0, n) for n in joint.shape), whole)
    else:
        for elements, box in parts:
            whole[box.relative_to(joint.start).slices] = elements
    return whole, joint


def _woven(parts: Sequence[Part], lanes: Bytes, joint: Box) -> Woven | None:
    """The parts as lanes of one shape that follow one another along one dimension; None for other parts."""
    (elements, first), shape = parts[0], parts[0][0].shape
    across = [
        d
        for d, (one, all_of_them) in enumerate(zip(shape, joint.shape, strict=True))
        if one != all_of_them
    ]
    if len(across) != 1 or joint.size * elements.itemsize != lanes.nbytes:
        return None
    dim = across[0]
    start, width = first.start[dim], shape[dim]
    is_even = all(
        other.shape == shape and box.start[dim] == start + number * width
        for number, (other, box) in enumerate(parts)
    )
    return Woven(lanes.view(elements.dtype).reshape(len(parts), *shape), dim) if is_even else None


def _lane(task: Task, chunk: SourceChunk) -> Lane:
    placement = task.placement
    stored = StoredChunks(placement.source, placement.source_dtype, task.source_encoding, task.fill)
    box = placement.from_source(chunk.box)
    return Lane(stored, chunk, box.intersect(task.unit) or box, box.start)


def _read(
    lanes: Sequence[Lane], band: Band, memory: Bytes, dtype: np.dtype[Any]
) -> tuple[int, list[Part]]:
    """How many bytes of ``memory`` the lanes' bands take, and what is wanted of each."""
    parts: list[Part] = []
    at = 0
    for lane in lanes:
        nbytes, part = lane.read(band, memory[at:], dtype)
        at += nbytes
        if part is not None:
            parts.append(part)
    return at, parts


def _joint_box(parts: Sequence[Part]) -> Box:
    """What parts that lie side by side cover together."""
    start = tuple(map(min, zip(*(box.start for _, box in parts), strict=True)))
    stop = tuple(map(max, zip(*(box.stop for _, box in parts), strict=True)))
    return Box(start, stop)


def _group_bands(task: Task, group: Sequence[SourceChunk], part: Box | None) -> Iterator[Band]:
    """``part`` is what is wanted of the first chunk: all have it alike in the dimensions that are cut."""
    shape, lane_dim, rows = _group_shape(task, group)
    return bands(shape, lane_dim, rows, task.band_bytes, part)


def group_capacity(task: Task, group: Sequence[SourceChunk]) -> int:
    """Bytes of a group's largest band, all lanes together."""
    shape, lane_dim, rows = _group_shape(task, group)
    return band_capacity(shape, lane_dim, rows, task.band_bytes)


def _group_shape(
    task: Task, group: Sequence[SourceChunk]
) -> tuple[tuple[int, ...], int, list[int]]:
    """Common leading shape, first dimension along which lanes differ, and joint bytes per row."""
    first = group[0]
    rank = len(first.stored_shape)
    lane_dim = min((_first_difference(first.index, s.index) for s in group[1:]), default=rank)
    itemsize = storage_bytes(task.placement.source_dtype)
    rows = [sum(r) for r in zip(*(row_bytes(s.stored_shape, itemsize) for s in group), strict=True)]
    return first.stored_shape, lane_dim, rows or [itemsize]


def _first_difference(a: Sequence[int], b: Sequence[int]) -> int:
    return next(d for d, (i, j) in enumerate(zip(a, b, strict=True)) if i != j)
