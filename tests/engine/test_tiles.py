"""Units that follow the tiles of a target: none has a part of a tile, and tiles of chunks cost nothing."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from reshard.geometry.box import Box
from reshard.geometry.grid import Grid
from reshard.planning.tensor_plan import Fill
from tests.engine.pieces import ENCODINGS, MIB, Conversion, moved
from tests.engine.stores import ZSTD_CRC

pytestmark = pytest.mark.usefixtures("dirty_buffers")


def unit_boxes(fill: Fill) -> list[Box]:
    """The boxes of the target that the units of a fill are."""
    if fill.is_joint:
        return [box.shift(fill.box.start) for box in fill.units.boxes()]
    return [box for unit in fill.units.boxes() for box, _ in fill.piece.target_boxes(unit)]


def assert_follows(fill: Fill, tiles: Sequence[int]) -> None:
    """Every unit ends where tiles do, or where its piece does."""
    spec = fill.target.spec
    edges = Grid.regular(spec.shape, tiles).cuts
    for box in unit_boxes(fill):
        for dim, cuts in enumerate(edges):
            ends = {*cuts, fill.box.start[dim], fill.box.stop[dim]}
            assert {box.start[dim], box.stop[dim]} <= ends, (box, cuts)


@ENCODINGS
@pytest.mark.parametrize("turned", [False, True], ids=["in order", "turned"])
@pytest.mark.parametrize(
    ("source_chunk", "tiles"),
    [((8, 1024), (64, 256)), ((96, 256), (64, 256)), ((64, 64), (100, 1024)), ((64, 64), (512, 1024))],
    ids=["rows", "across", "beside", "whole"],
)  # fmt: skip
def test_units_follow_tiles_of_the_target(encoding, turned, source_chunk, tiles, tmp_path):
    """Chunks of source and target end where no tile does, and memory is short: no unit has a part of a tile."""
    made = Conversion(tmp_path, encoding)
    values = made.source("w", (1024, 512) if turned else (512, 1024), source_chunk)
    made.target("t", np.ascontiguousarray(values.T if turned else values), (32, 256))
    order = (1, 0) if turned else (0, 1)
    made.piece(moved("w", Box.full(values.shape), "t", Box.full((512, 1024)), order), tiles)
    plan = made.plan(16 * MIB)
    (fill,) = plan.plans[0].tensors[0].fills
    assert_follows(fill, tiles)
    assert fill.units.count > 1 or source_chunk == (64, 64)
    if source_chunk == (8, 1024) and not turned:
        assert plan.amplification == 1.0
    made.check(plan, made.run(plan, tmp_path / "journal"))


@ENCODINGS
def test_units_of_many_pieces_follow_tiles(encoding, tmp_path):
    """Two sources are joined within a tile; units end with tiles, or where the sources meet."""
    made = Conversion(tmp_path, encoding)
    a, b = made.source("a", (300, 1024), (32, 512)), made.source("b", (340, 1024), (84, 1024))
    made.target("t", np.concatenate([a, b]), (32, 1024))
    made.piece(moved("a", Box.full(a.shape), "t", Box((0, 0), (300, 1024))), (128, 1024))
    made.piece(moved("b", Box.full(b.shape), "t", Box((300, 0), (640, 1024))), (128, 1024))
    plan = made.plan(16 * MIB)
    for fill in plan.plans[0].tensors[0].fills:
        assert fill.units.count > 1 or fill.is_joint
        assert_follows(fill, (128, 1024))
    made.check(plan, made.run(plan, tmp_path / "journal"))


def test_tiles_of_chunks_cost_nothing(tmp_path):
    """Where chunks end with tiles, as much is decoded and as much is written as without tiles."""
    made = Conversion(tmp_path, ZSTD_CRC)
    made.source("w", (512, 1024), (64, 1024))
    made.target("t", np.zeros((512, 1024), np.float32), (128, 1024))
    made.piece(moved("w", Box.full((512, 1024)), "t", Box.full((512, 1024))))
    without = made.plan(16 * MIB)
    made.requests.clear()
    made.piece(moved("w", Box.full((512, 1024)), "t", Box.full((512, 1024))), (128, 1024))
    assert made.plan(16 * MIB) == without
