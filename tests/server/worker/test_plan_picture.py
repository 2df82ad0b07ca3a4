"""How much of a tensor moves: what no target shard has from the source shard that gives it most."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from reshard_server.worker.answer import is_resplit, moved_bytes, overlap

from reshard.geometry.grid import Grid

Cuts = tuple[tuple[int, ...], ...]


def tensor(source: Cuts, target: Cuts) -> Any:
    shape = tuple(cuts[-1] for cuts in source)
    nbytes = 4 * int(np.prod(shape))
    spec = SimpleNamespace(shape=shape, nbytes=nbytes, slices=Grid(shape, target))
    source_spec = SimpleNamespace(slices=Grid(shape, source))
    return SimpleNamespace(source_spec=source_spec, target_spec=spec)


ROWS, COLUMNS, WHOLE = ((0, 4, 8), (0, 8)), ((0, 8), (0, 4, 8)), ((0, 8), (0, 8))


@pytest.mark.parametrize(
    ("source", "target", "moved", "reads"),
    [
        (ROWS, ROWS, 0, (1, 1)),
        (ROWS, COLUMNS, 128, (2, 2)),
        (WHOLE, ROWS, 0, (1, 1)),
        (ROWS, WHOLE, 128, (2, 2)),
        (((0, 3, 6, 8), (0, 8)), ROWS, 4 * 8 * 3, (2, 2)),
        (((0, 5, 8), (0, 8)), ROWS, 4 * 8, (1, 2)),
        ((), (), 0, (1, 1)),
        (((0,),), ((0,),), 0, (0, 0)),
    ],
)
def test_bytes_that_move(source: Cuts, target: Cuts, moved: int, reads: tuple[int, int]) -> None:
    found = tensor(source, target)
    assert moved_bytes(found) == moved
    assert (overlap(found).least, overlap(found).most) == reads
    assert is_resplit(found) == (source != target)


def test_against_every_element() -> None:
    """Each shard in turn, element by element."""
    rng = np.random.default_rng(0)
    for _ in range(50):
        shape = (int(rng.integers(1, 9)), int(rng.integers(1, 9)))
        ends: list[Cuts] = []
        for _ in range(2):
            inner = [
                sorted({int(c) for c in rng.integers(1, n, 3)} if n > 1 else ()) for n in shape
            ]
            ends.append(tuple((0, *cuts, n) for cuts, n in zip(inner, shape, strict=True)))
        source, target = Grid(shape, ends[0]), Grid(shape, ends[1])
        of_source = np.empty(shape, int)
        for number, box in enumerate(source.boxes()):
            of_source[tuple(map(slice, box.start, box.stop))] = number
        moved, counts = 0, []
        for box in target.boxes():
            numbers = of_source[tuple(map(slice, box.start, box.stop))]
            _, many = np.unique(numbers, return_counts=True)
            moved += numbers.size - many.max()
            counts.append(len(many))
        found = tensor(*ends)
        assert moved_bytes(found) == 4 * moved
        assert (overlap(found).least, overlap(found).most) == (min(counts), max(counts))
