"""Cuts of codes, as grids and as loose boxes, are held against their blocks."""

from __future__ import annotations

import pytest

from reshard.errors import PlanError
from reshard.formats.quantized import QuantizedPair, find_pairs
from reshard.geometry.grid import Box, Grid
from reshard.layout.tensor_spec import TensorSpec
from reshard.planning.keep_pairs import refuse_cut, refuse_parted
from reshard.planning.piece import Piece

SHAPE = (256, 576)


def specs(*tensors: tuple[str, str, tuple[int, ...]]) -> dict[str, TensorSpec]:
    return {name: TensorSpec(name, shape, dtype, Grid.whole(shape)) for name, dtype, shape in tensors}  # fmt: skip


PAIR = QuantizedPair("w", "fp8, blocks of 128", {"scale": "w_scale"}, (1, 128), "w")


@pytest.mark.parametrize("cut", [128, 256, 512])
def test_cuts_at_multiples(cut: int) -> None:
    refuse_cut(PAIR, "w", Grid(SHAPE, ((0, 3, 256), (0, cut, 576))))
    refuse_cut(PAIR, "w", [Box((0, 0), (7, cut)), Box((0, cut), (7, 576)), Box((7, 0), SHAPE)])
    refuse_cut(PAIR, "w", ())
    refuse_cut(PAIR, "w", Grid((0, 0), ((0,), (0,))))


@pytest.mark.parametrize("cut", [1, 96, 129, 575])
def test_cuts_inside_a_block(cut: int) -> None:
    said = f"'t' would be cut at {cut} of 576 along dimension 1, inside a block of 128: 'w' holds codes"
    for slices in (
        Grid(SHAPE, ((0, 256), (0, cut, 576))),
        (Box((0, 0), (256, cut)), Box((0, cut), SHAPE)),
    ):
        with pytest.raises(PlanError, match=said):
            refuse_cut(PAIR, "t", slices)


def test_exceptions_take_as_much_of_a_name_as_tells_it_apart() -> None:
    """A norm has a scale too, which the rules must not touch."""
    source = specs(
        ("mlp/kernel/array/qvalue", "int8", (64, 64)),
        ("mlp/kernel/array/scale", "float32", (1, 64)),
        ("norm/scale", "float32", (64,)),
    )
    targets = []
    for name, spec in source.items():
        cast = TensorSpec(name, spec.shape, "bfloat16", Grid.whole(spec.shape))
        targets.append((Piece.whole(spec, cast if spec.dtype == "float32" else spec),))
    with pytest.raises(PlanError) as raised:
        refuse_parted(find_pairs(source), source, targets)
    assert str(raised.value) == (
        "'mlp/kernel/array/scale' would be cast from float32 to bfloat16: 'mlp/kernel/array/qvalue' holds codes (int8, a scale for each channel), "
        "which mean nothing without 'mlp/kernel/array/scale', and a cast of either alters the weights. 1 tensor is in the way "
        "('mlp/kernel/array/scale'); give cast '\\barray/scale$=float32' before the other casts, which leave them as they are (cast), or take the weights that they stand for "
        "(dequantize)"
    )
