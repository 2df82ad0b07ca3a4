"""The chunks of a target: its shards, merged when tiny, subdivided when huge."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise

from reshard.errors import PlanError
from reshard.geometry.grid import Grid
from reshard.geometry.sizes import format_bytes

MERGE_BELOW_BYTES = 1 << 20
"""Smaller files cost more to open than to read."""

SPLIT_ABOVE_BYTES = 256 << 20
"""With larger chunks readers can neither share the work nor bound their memory."""

LARGEST_OBJECT_BYTES = 64 << 20
SMALLEST_OBJECT_BYTES = 8 << 20
OBJECTS_IN_MEMORY = 32
"""In a bucket a chunk is put whole and by one request: several at once should fit the memory, and none be too small to be
worth a request."""

MAX_CHUNKS = 1 << 20
"""Per tensor. Each chunk is a file, and writing 1 GiB in chunks of one byte would never end."""


def chunk_shape(
    slices: Grid,
    itemsize: int,
    merge_below: int = MERGE_BELOW_BYTES,
    split_above: int = SPLIT_ABOVE_BYTES,
) -> tuple[int, ...]:
    """Shape of the chunks for a tensor whose devices need ``slices``.

    zarr stores only regular grids, so the chunk takes the largest part of an uneven dimension.

    >>> chunk_shape(Grid.regular((1024, 1024), (1024, 128)), 4)
    (1024, 256)
    """
    return _chunk_shape(slices.largest, slices.shape, itemsize, merge_below, split_above)


def object_chunk_bytes(max_memory: int) -> int:
    """The most bytes of a chunk of a target in a bucket, unless others are asked for.

    >>> [object_chunk_bytes(mib << 20) >> 20 for mib in (128, 512, 1024, 8192)]
    [8, 16, 32, 64]
    """
    share = max(max_memory, 1) // OBJECTS_IN_MEMORY
    rounded = 1 << max(0, share.bit_length() - 1)
    return min(LARGEST_OBJECT_BYTES, max(SMALLEST_OBJECT_BYTES, rounded))


@lru_cache(maxsize=1024)
def _chunk_shape(
    part: tuple[int, ...], shape: tuple[int, ...], itemsize: int, below: int, above: int
) -> tuple[int, ...]:
    chunk = merged([max(1, n) for n in part], shape, itemsize, below, above)
    return tuple(subdivided(chunk, shape, itemsize, above))


def merged(
    chunk: list[int], shape: tuple[int, ...], itemsize: int, below: int, above: int
) -> list[int]:
    """The chunk made larger until it has at least ``below`` bytes, never more than ``above``.

    Doubles (or completes) split dimensions, the last one first: wide rows are read fastest.
    """
    for dim in reversed(range(len(chunk))):
        while chunk[dim] < shape[dim] and math.prod(chunk) * itemsize < below:
            grown = [*chunk[:dim], _next_multiple(chunk[dim], shape[dim]), *chunk[dim + 1 :]]
            if math.prod(grown) * itemsize > above:
                break
            chunk = grown
    return chunk


def _next_multiple(part: int, size: int) -> int:
    """The next larger multiple of ``part`` that cuts ``size`` evenly, else the whole size."""
    count = -(-size // part)
    for fewer in range(count // 2, 0, -1):
        if size % part == 0 and count % fewer == 0:
            return size // fewer
    return size


def subdivided(chunk: list[int], shape: tuple[int, ...], itemsize: int, above: int) -> list[int]:
    """The chunk made smaller until it has at most ``above`` bytes, keeping its cuts.

    Divides the first dimensions that can be divided, so that the pieces stay contiguous.
    """
    chunk = list(chunk)
    for dim in range(len(chunk)):
        rest = math.prod(chunk[:dim] + chunk[dim + 1 :]) * itemsize
        if chunk[dim] * rest > above:
            chunk[dim] = _divided(chunk[dim], shape[dim], max(1, above // max(1, rest)))
    return chunk


def _divided(part: int, size: int, at_most: int) -> int:
    """A smaller part whose cuts include those of ``part``, near ``at_most`` elements.

    A dimension that is not split has no cuts to keep. If a shard's size has only far smaller divisors (it is prime,
    say), it stays whole, and the next dimension is divided.
    """
    if not size:
        return part
    if part >= size:
        return -(-size // -(-size // at_most))
    divisor = _largest_divisor(part, at_most)
    return divisor if 8 * divisor >= at_most else part


def _largest_divisor(size: int, at_most: int) -> int:
    """The largest divisor of ``size`` that is at most ``at_most``."""
    best = 1
    for small in range(1, math.isqrt(size) + 1):
        if size % small == 0:
            best = max([best, *(d for d in (small, size // small) if d <= at_most)])
    return best


def contiguous_grid(
    slices: Grid, itemsize: int, most_bytes: int, wanted: Grid | None = None
) -> Grid:
    """A finer grid, whose boxes are contiguous in their slice and have at most ``most_bytes``.

    Rows of the first dimension are grouped; if one row is too large, the next dimension is cut too. Where it is cut, the cuts of
    ``wanted`` come first.

    >>> contiguous_grid(Grid.whole((6, 4)), 4, 40).cuts
    ((0, 2, 4, 6), (0, 4))
    >>> contiguous_grid(Grid.whole((2, 4)), 4, 8).cuts
    ((0, 1, 2), (0, 2, 4))
    >>> contiguous_grid(Grid.whole((9, 4)), 4, 64, Grid.regular((9, 4), (3, 4))).cuts
    ((0, 3, 6, 9), (0, 4))
    """
    cuts, largest = list(slices.cuts), list(slices.largest)
    for dim in range(len(cuts)):
        if math.prod(largest) * itemsize <= most_bytes:
            break
        row = math.prod(largest[dim + 1 :]) * itemsize
        largest[dim] = max(1, most_bytes // row)
        near = () if wanted is None else wanted.cuts[dim]
        cuts[dim] = _stepped(cuts[dim], largest[dim], near)
    return Grid(slices.shape, tuple(cuts))


@lru_cache(maxsize=1024)
def _stepped(cuts: tuple[int, ...], step: int, wanted: tuple[int, ...] = ()) -> tuple[int, ...]:
    """Each part cut into parts of at most ``step``: at the last wanted cut that is near enough, else after ``step``."""
    found = [0]
    for begin, end in pairwise(cuts):
        at = begin
        while at < end:
            place = bisect_right(wanted, min(at + step, end))
            near = wanted[place - 1] if place else at
            at = near if at < near < end else min(at + step, end)
            found.append(at)
    return tuple(found) if cuts[-1] else cuts


TINY_BYTES = 64 << 10
"""Chunks below this are not made to serve a layout: opening one costs more than reading it whole."""


def serving_chunk(
    grids: Sequence[Grid],
    itemsize: int,
    name: str = "",
    tiny: int = TINY_BYTES,
    merge_below: int | None = None,
    split_above: int = SPLIT_ABOVE_BYTES,
) -> tuple[int, ...]:
    """Shape of chunks such that every box of every grid is a whole number of them.

    If the boxes of a grid are themselves below ``tiny`` bytes, chunks are merged until they have ``tiny`` bytes (or
    ``merge_below``), and a device may read that much more than it needs. Raises PlanError, naming the tensor, if larger
    boxes would need chunks below ``tiny``.

    >>> serving_chunk([Grid.regular((24, 8), (3, 8)), Grid.regular((24, 8), (6, 8))], 4, tiny=1)
    (3, 8)
    """
    shape = grids[0].shape
    chunk = []
    for dim in range(len(shape)):
        # The largest step that meets every inner cut; the whole size if there is no inner cut.
        step = math.gcd(*(cut for grid in grids for cut in grid.cuts[dim][1:-1]))
        chunk.append(step or max(1, shape[dim]))
    if math.prod(chunk) * itemsize < tiny:
        _refuse_tiny(grids, chunk, itemsize, name, tiny)
        below = tiny if merge_below is None else merge_below
        chunk = merged(chunk, shape, itemsize, below, split_above)
    return tuple(subdivided(chunk, shape, itemsize, split_above))


def _refuse_tiny(
    grids: Sequence[Grid], chunk: Sequence[int], itemsize: int, name: str, tiny: int
) -> None:
    smallest = min(math.prod(grid.largest) * itemsize for grid in grids)
    if smallest < tiny:
        return
    parts = " and ".join(dict.fromkeys(str(list(grid.parts)) for grid in grids))
    raise PlanError(
        f"{name!r} of shape {list(grids[0].shape)}: no chunks of at least {format_bytes(tiny)} serve every "
        f"layout of chunks_for: cut into {parts} parts, only chunks of shape {list(chunk)} "
        f"({format_bytes(math.prod(chunk) * itemsize)}) do; leave out one of these layouts, or choose part "
        "counts that divide one another"
    )
