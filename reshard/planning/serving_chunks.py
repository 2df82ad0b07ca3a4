"""A chunk grid that serves several layouts: a device reads only its own box, in any of them.

A box is read without surplus if it is a union of whole chunks, so every cut of every layout must be a cut of the
storage. Storage grids are regular, so along each dimension the chunk's size must divide every inner cut; the largest
that does is their greatest common divisor::

    8 parts of 24 rows    3  6  9 12 15 18 21
    4 parts of 24 rows       6    12    18          gcd 3: chunks of 3 rows
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from reshard.errors import PlanError
from reshard.formats.chunking import SPLIT_ABOVE_BYTES, merged, subdivided
from reshard.geometry.grid import Grid
from reshard.geometry.sizes import format_bytes

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
    """Shape of chunks of which every box of every grid is a whole number.

    If the boxes of a grid are themselves below ``tiny`` bytes, chunks are merged until they have ``tiny`` bytes (or
    ``merge_below``), and a device may read that much more than it needs. Raises PlanError, naming the tensor, if larger
    boxes would need chunks below ``tiny``.

    >>> serving_chunk([Grid.regular((24, 8), (3, 8)), Grid.regular((24, 8), (6, 8))], 4, tiny=1)
    (3, 8)
    """
    shape = grids[0].shape
    chunk = [_common_step([grid.cuts[dim] for grid in grids]) for dim in range(len(shape))]
    if math.prod(chunk) * itemsize < tiny:
        _refuse_tiny(grids, chunk, itemsize, name, tiny)
        below = tiny if merge_below is None else merge_below
        chunk = merged(chunk, shape, itemsize, below, split_above)
    return tuple(subdivided(chunk, shape, itemsize, split_above))


def _common_step(cuts: Sequence[tuple[int, ...]]) -> int:
    """The largest step that meets every inner cut; the whole size if there is no inner cut."""
    return math.gcd(*(c for some in cuts for c in some[1:-1])) or max(1, cuts[0][-1])


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
