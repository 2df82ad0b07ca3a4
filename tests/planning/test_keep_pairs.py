"""Cuts of codes are held against their blocks, and scales follow their codes through maps and layouts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from reshard.errors import PlanError
from reshard.formats.quantized import Quantized, QuantizedPair, find_pairs
from reshard.geometry.grid import Box, Grid
from reshard.layout.device_mesh import DeviceMesh
from reshard.layout.layout_map import LayoutMap
from reshard.layout.tensor_spec import TensorSpec
from reshard.maps.given_map import map_of
from reshard.maps.mapped import MappedTensor
from reshard.planning.keep_pairs import refuse_cut, refuse_parted
from reshard.planning.pair_layouts import TargetPairs
from reshard.planning.piece import Piece, check_tiled

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


def fp8(name: str, shape: tuple[int, ...], scale: tuple[int, ...]) -> dict[str, TensorSpec]:
    return specs((name, "float8_e4m3fn", shape), (f"{name}_scale_inv", "float32", scale))


Q, K = fp8("q", (256, 384), (2, 3)), fp8("k", (192, 384), (2, 3))
EXPERTS = {**fp8("w.0", (256, 384), (2, 3)), **fp8("w.1", (256, 384), (2, 3))}
WHOLE = {**fp8("q", (256, 384), ()), **fp8("k", (128, 384), ())}
CHANNELS = {**fp8("q", (256, 384), (256, 1)), **fp8("k", (128, 384), (128, 1))}
PACKED = specs(("q.weight_packed", "int32", (256, 48)), ("q.weight_scale", "float16", (256, 3)), ("q.weight_shape", "int64", (2,)))  # fmt: skip
JOIN = {"from": ["q", "k"], "to": "qk", "shape": "a e, b e -> [a | b] e"}
Arrays = dict[str, np.ndarray]


def numbers(source: dict[str, TensorSpec]) -> Arrays:
    """Codes as small integers, and scales that are powers of two: products are exact."""
    rng = np.random.default_rng(0)
    return {n: np.exp2(rng.integers(-3, 3, s.shape)) if "scale" in n else rng.integers(-9, 9, s.shape) * 1.0 for n, s in source.items()}  # fmt: skip


def moved(made: MappedTensor, arrays: Arrays) -> np.ndarray:
    """The target of pieces, by numpy alone."""
    out = np.full(made.spec.shape, np.nan)
    for piece in made.pieces:
        array = arrays[piece.source]
        array = array if piece.source_view is None else array.reshape(piece.source_view.shape)
        view = out if piece.target_view is None else out.reshape(piece.target_view.shape)
        view[piece.target_box.slices] = array[piece.source_box.slices].transpose(piece.axis_order)
    return out


def weights(arrays: Arrays, name: str) -> np.ndarray:
    codes, scale = arrays[name], arrays[f"{name}_scale_inv"]
    for dim in range(scale.ndim):
        size = codes.shape[dim]
        block = next(
            (b for b in (1, 64, 128) if -(-size // b) == scale.shape[dim]), size // scale.shape[dim]
        )
        scale = np.repeat(scale, block, dim)[(slice(None),) * dim + (slice(size),)]
    return codes * scale


@pytest.mark.parametrize(
    ("rule", "source", "sizes"),
    [
        ({"from": "q", "to": "x"}, Q, {}),
        ({"from": "q", "to": "x", "shape": "a b -> b a"}, Q, {}),
        (JOIN, Q | K, {}),
        (JOIN, CHANNELS, {}),
        ({"from": "w.{i}", "to": "w", "shape": "a b -> i a b"}, EXPERTS, {}),
        ({"from": "w.{i}", "to": "w", "shape": "a b -> b i a"}, EXPERTS, {}),
        ({"from": "w.{i}", "to": "w", "shape": "a b -> (i a) b"}, EXPERTS, {}),
        ({"from": "w", "to": "w.{i}", "shape": "i a b -> b a"}, fp8("w", (2, 256, 384), (2, 2, 3)), {}),
        ({"from": "q", "to": "x", "shape": "(h d) b -> b h d"}, Q, {"h": 2}),
        ({"from": "q", "to": "x", "shape": "(h d) b -> b h d"}, Q, {"h": 4}),
        ({"from": "q", "to": ["x", "y"], "shape": "[a | b] e -> a e, b e"}, Q, {"a": 128}),
        ({"from": "q", "to": ["x", "y"], "shape": "[a | b] e -> a e, b e"}, fp8("q", (256, 384), ()), {"a": 100}),
        ({"from": ["q", "k"], "to": "qk", "shape": "(g a) e, (g b) e -> (g [a | b]) e"}, Q | fp8("k", (512, 384), (4, 3)), {"g": 2}),
    ],
)  # fmt: skip
def test_scales_follow_their_codes_through_maps(
    rule: dict[str, Any], source: dict[str, TensorSpec], sizes: dict[str, int]
) -> None:
    """Weights of what a map makes of codes and scales are what it makes of weights."""
    given = map_of({"map": [rule]}, sizes or None)
    made = {tensor.spec.name: tensor for tensor in given.applied(source).tensors}
    for tensor in made.values():
        check_tiled(tensor.spec, tensor.pieces)
    refuse_parted(find_pairs(source), source, [tensor.pieces for tensor in made.values()])
    arrays = numbers(source)
    targets = {name: moved(tensor, arrays) for name, tensor in made.items()}
    plain = {n: weights(arrays, n) for n in source if "scale" not in n}
    assert len(made) == 2 * sum("scale" not in name for name in made)
    for name in made:
        if "scale" not in name:
            assert np.array_equal(weights(targets, name), moved(made[name], plain)), name
    assert set((find_pairs({n: t.spec for n, t in made.items()}) or Quantized({}, 0)).pairs) == {n for n in made if "scale" not in n}  # fmt: skip


def test_codes_that_are_joined_and_cast() -> None:
    """Their scales follow them, but a cast alters codes."""
    made = map_of({"map": [JOIN]}, None).applied(Q | K).tensors
    targets = [[replace(p, target_dtype="bfloat16") if p.source in "qk" else p for p in t.pieces] for t in made]  # fmt: skip
    with pytest.raises(PlanError, match="'q' would be cast from float8_e4m3fn to bfloat16"):
        refuse_parted(find_pairs(Q | K), Q | K, targets)


ABOUT_Q = "'q' holds codes (fp8, blocks of 128×128), which mean nothing without 'q_scale_inv'"
OTHERWISE = "move both whole, by rules of the map with 'from' and 'to' alone, or make weights of the codes first (dequantize)"
IN_PART = "in part, in another order or as other numbers"
NO_MULTIPLE = f"parts must be multiples of blocks, and a scale for all of a dimension fits no other; {OTHERWISE}"


@pytest.mark.parametrize(
    ("rule", "source", "sizes", "said"),
    [
        ({"from": ["k", "q"], "to": "qk", "shape": "a e, b e -> [a | b] e"}, K | Q, {}, f"'qk' would have 'k' {IN_PART}: {ABOUT_Q.replace(chr(39) + 'q', chr(39) + 'k')}, but {NO_MULTIPLE}"),
        ({"from": "q", "to": ["x", "y"], "shape": "[a | b] e -> a e, b e"}, Q, {"a": 100}, f"'x' would have 'q' {IN_PART}: {ABOUT_Q}, but {NO_MULTIPLE}"),
        ({"from": "q", "to": "x", "shape": "(h d) b -> (d h) b"}, Q, {"h": 2}, f"'x' would have 'q' {IN_PART}: {ABOUT_Q}, but {NO_MULTIPLE}"),
        (JOIN, WHOLE, {}, "'qk' would have 'q' in part, in another order or as other numbers: 'q' holds codes (fp8, a scale for each), which mean nothing without "
         f"'q_scale_inv', but 'q_scale_inv' of shape [] has no part for a part of them; {OTHERWISE}"),
        ({**JOIN, "shape": "a e, a f -> a [e | f]"}, fp8("q", (256, 384), (256, 1)) | fp8("k", (256, 128), (256, 1)), {},
         "'qk' would have 'q' in part, in another order or as other numbers: 'q' holds codes (fp8, a scale for each channel), which mean nothing without "
         f"'q_scale_inv', but {NO_MULTIPLE}"),
        (JOIN, Q | fp8("k", (128, 384), (2, 6)), {}, "'qk' would have 'q' in part, in another order or as other numbers: "
         f"{ABOUT_Q}, but the scales of the others have other blocks or dtypes; {OTHERWISE}"),
        (JOIN, Q | specs(("k", "float8_e4m3fn", (128, 384))), {}, f"'qk' would have 'q' together with 'k', which has not the same companions: {ABOUT_Q}; keep "
         "them apart (map), or make weights of the codes first (dequantize)"),
        ({"from": "q", "to": "x", "shape": "a b -> a b", "pad": {"a": 512}}, Q, {}, f"'x' would have 'q' together with padding, which has not the same companions: "
         f"{ABOUT_Q}; keep them apart (map), or make weights of the codes first (dequantize)"),
        ({"from": "q.weight_packed", "to": "x.weight_packed", "shape": "a b -> b a"}, PACKED, {}, "'x.weight_packed' would have 'q.weight_packed' in part, in another "
         "order or as other numbers: 'q.weight_packed' holds codes (packed integers), which mean nothing without 'q.weight_scale', but an element holds several "
         f"codes of its row; {OTHERWISE}"),
        ({"from": "q.weight_packed", "to": ["x.weight_packed", "y.weight_packed"], "shape": "[a | b] e -> a e, b e"}, PACKED, {"a": 128}, "'x.weight_packed' would have "
         "'q.weight_packed' in part, in another order or as other numbers: 'q.weight_packed' holds codes (packed integers), which mean nothing without "
         f"'q.weight_scale', but 'q.weight_shape' of shape [2] has no part for a part of them; {OTHERWISE}"),
    ],
)  # fmt: skip
def test_scales_that_cannot_follow(
    rule: dict[str, Any], source: dict[str, TensorSpec], sizes: dict[str, int], said: str
) -> None:
    with pytest.raises(PlanError) as raised:
        map_of({"map": [rule]}, sizes or None).applied(source)
    assert str(raised.value) == said


MESH = DeviceMesh((4,), ("tp",))


@pytest.mark.parametrize(
    ("codes", "companion", "axes", "parts"),
    [
        (("w", "float8_e4m3fn", (512, 384)), ("w_scale_inv", "float32", (4, 3)), ["tp"], (4, 1)),
        (("w", "float8_e4m3fn", (512, 384)), ("w_scale", "float32", ()), ["tp"], ()),
        (("w", "float8_e4m3fn", (512, 384)), ("w_scale", "float32", (1,)), ["tp"], (1,)),
        (("w", "float8_e4m3fn", (512, 384)), ("w_scale", "float32", (512, 1)), ["tp"], (4, 1)),
        (("w", "float8_e4m3fn", (512, 384)), ("w_scale", "float32", (512, 1)), [None, "tp"], (1, 1)),
        (("a.weight", "int8", (512, 384)), ("a.SCB", "float32", (512,)), ["tp"], (4,)),
        (("a.weight", "int8", (512, 384)), ("a.SCB", "float32", (512,)), [None, "tp"], (1,)),
        (("k/qvalue", "int8", (512, 384)), ("k/scale", "float32", (1, 384)), [None, "tp"], (1, 4)),
        (("e_blocks", "uint8", (8, 64, 3, 16)), ("e_scales", "uint8", (8, 64, 3)), [None, "tp"], (1, 4, 1)),
    ],
)  # fmt: skip
def test_companions_are_cut_with_their_codes(
    codes: tuple[str, str, tuple[int, ...]],
    companion: tuple[str, str, tuple[int, ...]],
    axes: list[str | None],
    parts: tuple[int, ...],
) -> None:
    source = specs(codes, companion)
    layouts = LayoutMap(MESH, match="fullmatch")
    layouts[codes[0]] = axes
    found = TargetPairs.of(find_pairs(source), source, source, layouts)
    assert found.splits[companion[0]].slices.parts == parts
    layouts[companion[0]] = [None] * len(companion[2])
    assert not TargetPairs.of(find_pairs(source), source, source, layouts).splits
