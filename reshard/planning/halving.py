"""Halves the units of a plan where a task of them does not fit into its memory."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from itertools import pairwise

from reshard.geometry.grid import Cuts, Grid


def best_halving(decoded: Callable[[Grid], int], units: Grid, assembled: Grid) -> Grid | None:
    """The units halved along the dimension that adds the least decoding, or None at single chunks."""
    halvings = [
        Grid(units.shape, (*units.cuts[:d], finer, *units.cuts[d + 1 :]))
        for d, cuts in enumerate(units.cuts)
        if (finer := _halve(cuts, assembled.cuts[d])) != cuts
    ]
    counted = [(decoded(u), i) for i, u in enumerate(halvings)]
    return halvings[min(counted)[1]] if counted else None


def first_halving(units: Grid, assembled: Grid) -> Grid | None:
    """The units halved along the first dimension in which they have several chunks, so that the chunks of each follow one
    another row-major; None at single chunks."""
    for d, cuts in enumerate(units.cuts):
        if (finer := _halve(cuts, assembled.cuts[d])) != cuts:
            return Grid(units.shape, (*units.cuts[:d], finer, *units.cuts[d + 1 :]))
    return None


@lru_cache(maxsize=4096)
def _halve(units: Cuts, cuts: Cuts) -> Cuts:
    """Every unit with more than one part is cut near its middle, at a cut of ``cuts``."""
    position = {cut: i for i, cut in enumerate(cuts)}
    finer = [0]
    for a, b in pairwise(units):
        middle = (position[a] + position[b]) // 2
        if middle > position[a]:
            finer.append(cuts[middle])
        finer.append(b)
    return tuple(finer)
