"""Weights become codes again with the scales of another checkpoint: its own weights give its bits, and what does not fit is counted."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from msgspec.structs import replace

import reshard
from reshard.arithmetic.codes_formula import CodesFormula
from reshard.arithmetic.dequantize import Dequantize
from reshard.arithmetic.quantize_like import NearestFormula, QuantizeLike
from reshard.arithmetic.sharing import Sharing
from reshard.errors import PlanError, VerificationError
from reshard.formats.registry import CheckpointPath
from reshard.geometry.grid import Box
from tests.arithmetic.quantised import (
    BF16,
    E4M3,
    Arrays,
    convert,
    flattened,
    random_codes,
    random_scale,
    restored,
    save_model,
)

CODES = ("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "int8", "int4", "int2", "uint4")  # fmt: skip
BLOCKS = {"quant_method": "fp8", "weight_block_size": [128, 128]}


def of(name: str) -> np.dtype[Any]:
    return np.dtype(getattr(ml_dtypes, name, name))


def every_code(dtype: str) -> np.ndarray:
    """All codes, but one NaN for all: weights do not tell them apart."""
    info: Any = ml_dtypes.iinfo(of(dtype)) if "int" in dtype else None
    found = np.arange(256, dtype=np.uint8).view(of(dtype)) if info is None else np.arange(int(info.min), int(info.max) + 1).astype(of(dtype))  # fmt: skip
    return found if dtype != "float8_e5m2" else found[~np.isnan(found)]


def some_scales(dtype: str) -> np.ndarray:
    if dtype == "float8_e8m0fnu":
        return np.arange(20, 230, dtype=np.uint8).view(of(dtype))
    rng = np.random.default_rng(3)
    size = 5 if dtype == "float16" else 90
    found = rng.uniform(1, 2, 2000) * 2.0 ** rng.integers(-size, size, 2000)
    return (found * rng.choice([1, 1, 1, -1], 2000)).astype(of(dtype))


@pytest.mark.parametrize("weights", ["bfloat16", "float32"])
@pytest.mark.parametrize("scale_dtype", ["float32", "bfloat16", "float16", "float8_e8m0fnu"])
@pytest.mark.parametrize("dtype", CODES)
def test_every_code_comes_back(dtype: str, scale_dtype: str, weights: Any) -> None:
    if scale_dtype == "float16" and ("e5m2" in dtype or (dtype, weights) == ("int8", "bfloat16")):  # fmt: skip
        pytest.skip("float16 has no number for every weight")
    scale = some_scales(scale_dtype).reshape(-1, 1)
    codes = np.tile(every_code(dtype), (len(scale), 1))
    box = Box.full(codes.shape)
    decoding = CodesFormula(scheme="", exact=False, dtype=weights, codes=dtype, sharing=Sharing.of_each(1, 0))  # fmt: skip
    made, back = np.empty(codes.shape, of(weights)), np.empty_like(codes)
    decoding.compute(box, [codes, scale], made)
    NearestFormula("w", "like", dtype, decoding).compute(box, [made, scale], back)
    assert np.array_equal(back.view(np.uint8), codes.view(np.uint8))


def test_a_scale_of_zero_keeps_zeros() -> None:
    decoding = CodesFormula(scheme="", exact=False, dtype="float32", codes="float8_e4m3fn", sharing=Sharing((0,), ()))  # fmt: skip
    formula = NearestFormula("w", "like", "float8_e4m3fn", decoding)
    out = np.empty(2, E4M3)
    formula.compute(Box((0,), (2,)), [np.array([0.0, -0.0], "f4"), np.array(0, "f4")], out)
    assert out.view(np.uint8).tolist() == [0, 128]


def like(path: Path, other: Path, **more: Any) -> CheckpointPath:
    chosen = CheckpointPath.at(str(path))
    return replace(chosen, computed=(*more.get("before", ()), QuantizeLike.asked(other)))


def stored(path: Path) -> Arrays:
    return {n: np.asarray(a) for n, a in flattened(reshard.restore(path))}


def the_same(found: Arrays, wanted: Arrays) -> bool:
    bits = {n: (a.dtype, a.shape, a.tobytes()) for n, a in wanted.items()}
    return {n: (a.dtype, a.shape, a.tobytes()) for n, a in found.items()} == bits


PLAIN = {"norm.weight": np.linspace(0, 2, 64).astype(BF16)}
HUGGING_FACE = {
    "a.weight": random_codes((200, 300)),
    "a.weight_scale_inv": random_scale((2, 3)),
    "b.weight": random_codes((64, 32)),
    "b.weight_scale": random_scale((64, 1), BF16),
    "b.input_scale": np.array(0.5, "f4"),
    "c.weight": random_codes((64, 32), np.int8),
    "c.weight_scale": random_scale((64, 1)),
    "d.weight": random_codes((64, 32)),
    "d.weight_scale": random_scale((1,)),
    **PLAIN,
}


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_a_checkpoint_gives_its_own_bits(tmp_path: Path, dtype: str) -> None:
    """Dequantised and quantised again, in one step and in two, also with plain tensors in another dtype."""
    source = save_model(tmp_path / "source", [HUGGING_FACE], BLOCKS)
    weights = restored(source, dtype)
    save_model(tmp_path / "weights", [{n: np.asarray(a, weights["a.weight"].dtype) for n, a in weights.items()}])  # fmt: skip
    convert(like(tmp_path / "weights", source), tmp_path / "made", to="safetensors")
    assert the_same(stored(tmp_path / "made"), HUGGING_FACE)
    again = like(source, source, before=(Dequantize.asked(dtype),))
    convert(again, tmp_path / "again", to="orbax")
    assert the_same({n.replace("/", "."): a for n, a in stored(tmp_path / "again").items()}, HUGGING_FACE)  # fmt: skip


def test_qwix_in_orbax(tmp_path: Path) -> None:
    tree = {
        "mlp": {"kernel": {"array": {"qvalue": random_codes((64, 32), np.int8), "scale": random_scale((4, 32))}}},
        "norm": {"scale": np.ones(8, "f4")},
    }  # fmt: skip
    reshard.save(tmp_path / "source", tree)
    weights = restored(tmp_path / "source", "float32")
    assert set(weights) == {"mlp/kernel", "norm/scale"}
    reshard.save(tmp_path / "weights", {"mlp": {"kernel": weights["mlp/kernel"]}, "norm": tree["norm"]})  # fmt: skip
    convert(like(tmp_path / "weights", tmp_path / "source"), tmp_path / "made")
    assert the_same(stored(tmp_path / "made"), stored(tmp_path / "source"))


def said(tmp_path: Path, weights: Arrays, other: Mapping[str, Any], config: Any = None) -> str:
    source = save_model(tmp_path / "weights", [weights])
    scales = save_model(tmp_path / "like", [other], config)
    with pytest.raises((PlanError, VerificationError)) as raised:
        convert(like(source, scales), tmp_path / "made")
    assert not (tmp_path / "made").exists()
    return str(raised.value).replace(f"{tmp_path}/", "")


ONE = {"w.weight": np.ones((4, 8), E4M3), "w.weight_scale": np.full((4, 1), 0.5, "f4")}
PACKED = {"w.weight_packed": np.ones((4, 8), np.int32), "w.weight_scale": np.ones((4, 2), np.float16), "w.weight_shape": np.array([4, 64])}  # fmt: skip
ONE_OF_EACH = "leave this out, or give a checkpoint with codes of one element each and a scale (quantize_like)"
NO_MODEL = "so they are not of one model; give a checkpoint of the same model, or leave out what is too much (quantize_like, drop)"


@pytest.mark.parametrize(
    ("weights", "other", "expected"),
    [
        ({"w.weight": np.ones((4, 8), BF16)}, {**ONE, "n": np.ones(2, "f4")}, f"weights has no 'n', which like has, {NO_MODEL}"),
        ({"w.weight": np.ones((4, 8), BF16), "m": np.ones(2, "f4"), "n": np.ones(2, "f4")}, ONE, f"like has no 'm' and 1 more, which weights has, {NO_MODEL}"),
        ({"w.weight": np.ones((4, 9), BF16)}, ONE, "'w.weight' has the shape [4, 9], but [4, 8] in like; give a checkpoint of the same model (quantize_like)"),
        ({"w.weight": np.ones((4, 8), "i4")}, ONE, "'w.weight' is int32, but float8_e4m3fn in like; expected one of float32, bfloat16, float16; cast it in a "
         "conversion of its own first (cast)"),
        ({"w.weight": np.ones((4, 8), BF16), "n": np.ones(2, "f4")}, {**ONE, "n": np.ones(2, "i4")}, "'n' is float32, but int32 in like; expected one of "
         "float32, bfloat16, float16; cast it in a conversion of its own first (cast)"),
        ({"n": np.ones(2, "f4")}, {"n": np.ones(2, "f4")}, "like has no quantised weights; give a checkpoint that has codes and scales (quantize_like)"),
        ({"w.weight": np.ones((4, 64), BF16)}, PACKED, "nothing can be quantised like 'w.weight_packed' of like: packed integers is not among the forms that are "
         f"written; {ONE_OF_EACH}"),
        ({"w.weight": np.ones((4, 8), BF16)}, {"w.weight": np.ones((4, 8), "i1"), "w.weight_scale": np.ones((4, 1), "f2")}, "nothing can be quantised like "
         f"'w.weight' of like: with scales in float16 two codes may be one weight in bfloat16; or take weights in float32; {ONE_OF_EACH}"),
        ({"w.weight": np.ones((4, 8), BF16)}, {**ONE, "w.weight_zero_point": np.zeros((4, 1), "f4")}, "nothing can be quantised like "
         f"'w.weight' of like: two codes that are far from their zero point may be one weight; {ONE_OF_EACH}"),
        ({"w.weight": np.array([[1, 500, -300, 232]] * 2, "f4")}, {"w.weight": np.ones((2, 4), E4M3), "w.weight_scale": np.full((2, 1), 0.5, "f4")},
         "'w.weight': 4 of the 8 values in [0:2, 0:4] do not fit float8_e4m3fn with the scales of like: the first is 500; weights that moved so far need scales of "
         "their own: quantise them with the program that made these, or let the engine do it as it loads them (quantize_like)"),
        ({"w.weight": np.array([[1, np.nan, 63.7, -64.3]], "f4")}, {"w.weight": np.ones((1, 4), "i1"), "w.weight_scale": np.full((1, 1), 0.5, "f4")},
         "'w.weight': 2 of the 4 values in [0:1, 0:4] do not fit int8 with the scales of like: the first is nan; weights that moved so far need scales of "
         "their own: quantise them with the program that made these, or let the engine do it as it loads them (quantize_like)"),
        ({"w.weight": np.ones((4, 8), BF16), "n": np.full(2, 1e30, "f4")}, {**ONE, "n": np.ones(2, "f2")}, "'n': 2 of the 2 values in [0:2] do not fit float16 "
         "with the scales of like: the first is 1e+30; weights that moved so far need scales of their own: quantise them with the program that made these, or let "
         "the engine do it as it loads them (quantize_like)"),
    ],
)  # fmt: skip
def test_refusals(tmp_path: Path, weights: Arrays, other: Arrays, expected: str) -> None:
    assert said(tmp_path, weights, other) == expected


def test_a_config_that_is_not_known(tmp_path: Path) -> None:
    found = said(tmp_path, {"w.weight": np.ones((4, 8), BF16)}, ONE, {"quant_method": "other"})
    assert found.startswith("the config of like has the quant_method 'other', which is not known")
    assert found.endswith(ONE_OF_EACH)
