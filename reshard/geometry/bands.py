"""Bands: the contiguous pieces in which a chunk's row-major elements are decoded."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence

from msgspec import Struct

from reshard.geometry.box import Box


class Band(Struct, frozen=True):
    """Rows ``start:stop`` of dimension ``len(lead)`` at the fixed leading indices ``lead``.

    In later dimensions a band is as wide as the chunk. So chunks that differ only in later dimensions can be decoded in
    lock step.
    """

    lead: tuple[int, ...]
    start: int
    stop: int

    def box(self, shape: Sequence[int]) -> Box:
        """The band within a chunk of ``shape``, counted from the chunk's start."""
        if not shape:
            return Box((), ())
        behind = shape[len(self.lead) + 1 :]
        return Box(
            (*self.lead, self.start, *(0,) * len(behind)),
            (*[i + 1 for i in self.lead], self.stop, *behind),
        )


def bands(
    shape: Sequence[int],
    first_open_dim: int,
    row_bytes: Sequence[int],
    band_bytes: int,
    wanted: Box | None = None,
) -> Iterator[Band]:
    """The bands of chunks that share the leading ``shape``, in row-major order.

    ``row_bytes[d]`` is the size of one index of dimension ``d`` over all chunks. Only dimensions before
    ``first_open_dim`` are cut. A band has at most ``band_bytes``, or one row. ``wanted`` is a box in the chunks'
    coordinates; no band mixes rows inside and outside of it.
    """
    if not shape:
        yield Band((), 0, 1)
        return
    dim, rows = band_cut(first_open_dim, row_bytes, band_bytes)
    edges = {0, shape[dim]} | ({wanted.start[dim], wanted.stop[dim]} if wanted else set())
    spans = list(itertools.pairwise(sorted(edges)))
    for lead in itertools.product(*map(range, shape[:dim])):
        for first, last in spans:
            for start in range(first, last, rows):
                yield Band(lead, start, min(start + rows, last))


def band_capacity(
    shape: Sequence[int], first_open_dim: int, row_bytes: Sequence[int], band_bytes: int
) -> int:
    """Bytes of the largest of these bands."""
    if not shape:
        return row_bytes[0]
    dim, rows = band_cut(first_open_dim, row_bytes, band_bytes)
    return min(rows, shape[dim]) * row_bytes[dim]


def band_cut(first_open_dim: int, row_bytes: Sequence[int], band_bytes: int) -> tuple[int, int]:
    """The dimension along which bands are cut, and how many of its indices one band takes."""
    dim = next((d for d in range(first_open_dim) if row_bytes[d] <= band_bytes), first_open_dim - 1)
    return dim, max(1, band_bytes // max(1, row_bytes[dim]))


def row_bytes(shape: Sequence[int], itemsize: int) -> list[int]:
    """Bytes of one index of each dimension of a row-major chunk."""
    return [math.prod(shape[d + 1 :]) * itemsize for d in range(len(shape))]
