from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given

from reshard.geometry.grid import Grid
from reshard.layout.axes import AxesLike
from reshard.layout.device_mesh import DeviceMesh
from reshard.layout.tensor_layout import TensorLayout
from reshard.layout.tensor_spec import TensorSpec
from reshard.planning.piece import Piece
from reshard.planning.planner import WantedPiece, make_plan
from reshard.planning.plans import Side
from reshard.planning.target_layouts import Share, shares
from tests.planning.strategies import wanted_pieces

MESH = DeviceMesh((4, 2), ("data", "model"))


def shares_between(shape: tuple[int, ...], source: AxesLike, target: AxesLike) -> list[Share]:
    chunk = tuple(max(1, n) for n in shape)
    ends = [
        TensorSpec("w", shape, "float32", Grid.whole(shape), chunk, TensorLayout(axes, MESH))
        for axes in (source, target)
    ]
    sides = [Side(spec, "raw", True, 0) for spec in ends]
    wanted = WantedPiece(Piece.whole(*ends), *sides)
    return list(shares(make_plan([wanted], 1 << 30, 1).tensors[0]))


def test_rows_become_columns() -> None:
    found = shares_between((8, 8), ("data", None), (None, "model"))
    assert found == [Share(t, s, 0.25) for t in range(2) for s in range(4)]


def test_equal_layouts_keep_every_byte() -> None:
    found = shares_between((8, 8), ("data", "model"), ("data", "model"))
    assert found == [Share(n, n, 1.0) for n in range(8)]


def test_scalars_and_empty_tensors() -> None:
    assert shares_between((), (), ()) == [Share(0, 0, 1.0)]
    assert shares_between((0, 4), (None, None), (None, "model")) == []


def test_a_part_of_a_larger_target() -> None:
    from reshard.geometry.grid import Box

    source = TensorSpec("a", (4,), "int8", Grid.whole((4,)), (4,))
    target = TensorSpec("b", (8,), "int8", Grid.whole((8,)), (8,), TensorLayout(("model",), MESH))
    piece = Piece("a", Box((0,), (4,)), "b", Box((2,), (6,)), (0,), "int8", "int8")
    rest = [Piece.filled(target, box, b"\0") for box in (Box((0,), (2,)), Box((6,), (8,)))]
    side = Side(target, "raw", True, 0)
    wanted_pieces = [
        WantedPiece(each, Side(source if each is piece else target, "raw", True, 0), side)
        for each in (piece, *rest)
    ]
    found = list(shares(make_plan(wanted_pieces, 1 << 30, 1).tensors[0]))
    assert found == [Share(0, 0, 0.5), Share(1, 0, 0.5)]


@given(wanted_pieces())
def test_shares_are_what_counting_elements_gives(wanted: WantedPiece) -> None:
    move = make_plan([wanted], 1 << 40, 1).tensors[0]
    source, target = wanted.source.spec, wanted.target.spec
    held = np.full(source.shape, -1)
    for number, index in enumerate(source.slices.indices()):
        held[source.slices.box(index).slices] = number
    needed = np.full(target.shape, -1)
    placement = wanted.piece
    needed[placement.target_box.slices] = held[placement.source_box.slices].transpose(
        placement.axis_order
    )
    for number, index in enumerate(target.slices.indices()):
        part = needed[target.slices.box(index).slices]
        expected = {s: np.mean(part == s) for s in set(part.ravel().tolist()) - {-1}}
        found = {s.source: s.share for s in shares(move) if s.target == number}
        assert found == pytest.approx(expected)
