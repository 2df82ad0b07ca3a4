"""Codes of one element each become the weights that plain formulas give, to the bit, in any grid."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Struct
from msgspec.structs import replace

import reshard
from reshard.arguments import Dequantized
from reshard.arithmetic.coded import Coded
from reshard.arithmetic.codes_formula import CodesFormula
from reshard.arithmetic.scaled import decode_scaled
from reshard.arithmetic.sharing import Sharing
from reshard.checkpoint import OpenedCheckpoint
from reshard.formats.base import Reader
from reshard.formats.computed.tensors import computed_reader
from reshard.formats.quantized import QuantizedPair
from reshard.formats.registry import CheckpointPath
from reshard.geometry.grid import Box
from reshard.storage.location import Location
from tests.arithmetic.quantised import (
    assert_same,
    convert,
    random_codes,
    random_scale,
    spread,
    weights,
)
from tests.campaigns import examples

CODES = ("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e4m3b11fnuz", "float8_e3m4", "int8", "uint8", "int4", "int2")  # fmt: skip
SCALES = ("float32", "bfloat16", "float16", "float8_e8m0fnu", "uint8")


def of(name: str) -> np.dtype[Any]:
    return np.dtype(getattr(ml_dtypes, name, name))


def every_scale(dtype: str) -> np.ndarray:
    """All exponents; or random scales of every size, and those that are no numbers."""
    if of(dtype).itemsize == 1:
        return np.arange(256, dtype=np.uint8).view(of(dtype)).reshape(-1, 1)
    rng = np.random.default_rng(7)
    odd = [0.0, -0.0, np.inf, -np.inf, np.nan, 1e-40, 3e38, -1.0]
    with np.errstate(all="ignore"):
        found = rng.standard_normal(300) * 2.0 ** rng.integers(-140, 128, 300)
        return np.array([*odd, *found]).astype(of(dtype)).reshape(-1, 1)


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("scale_dtype", SCALES)
@pytest.mark.parametrize("codes_dtype", CODES)
def test_every_code(codes_dtype: str, scale_dtype: str, dtype: Dequantized) -> None:
    scale = every_scale(scale_dtype)
    bits = {"int4": 15, "int2": 3}.get(codes_dtype, 255)
    # The other bits of a byte with fewer may be anything.
    codes = np.tile(np.arange(255, dtype=np.uint8), (len(scale), 1))
    numbers = codes.view(of(codes_dtype)) if bits == 255 else _signed(codes & bits, bits)
    formula = CodesFormula(
        scheme="", exact=False, dtype=dtype, codes=codes_dtype, sharing=Sharing.of_each(1, 0)
    )
    out = np.empty(codes.shape, of(dtype))
    formula.compute(Box.full(codes.shape), [codes.view(of(codes_dtype)), scale], out)
    assert_same(out, weights(numbers, scale, dtype))


def _signed(codes: np.ndarray, most: int) -> np.ndarray:
    return np.where(codes > most // 2, codes.astype(int) - most - 1, codes.astype(int))


def test_nan_has_one_sign() -> None:
    """Processors disagree about the sign of 0 × inf."""
    formula = CodesFormula(
        scheme="", exact=False, dtype="float32", codes="int8", sharing=Sharing((0,), (None,))
    )
    out = np.empty((3,), np.float32)
    codes = np.array([0, 1, -1], np.int8)
    formula.compute(Box.full((3,)), [codes, np.array([-np.inf], np.float32)], out)
    assert out.view(np.uint32).tolist() == [0x7FC00000, 0xFF800000, 0x7F800000]


class ByHand(Struct, frozen=True):
    """Decodes ``codes`` with ``scale`` and maybe ``zeros``, which have any chunks."""

    grain: tuple[int, ...]
    dtype: Dequantized
    has_zeros: bool
    option: tuple[str, int] = ("by hand", 1)
    text: str = "by hand"
    tensor_bytes: int = 1000

    def applied(self, base: Reader, root: Location) -> Reader:
        del root
        names = {"scale": "scale", **({"zero_point": "zeros"} if self.has_zeros else {})}
        pair = QuantizedPair("codes", "int8", names, self.grain, "")
        made = decode_scaled(Coded(pair, base, {}, self.dtype))
        return computed_reader(base, {"codes": made}, set(names.values()))

    places = ()


AXES = st.permutations(["x", "y", None, None]).map(lambda axes: tuple(axes[:3]))
FORMS = st.sampled_from(
    [
        {"to": "orbax", "compression": "zstd"},
        {"to": "orbax"},
        {"to": "safetensors", "files": "dcp"},
        {"to": "dcp"},
    ]
)


@settings(max_examples=examples(25))
@given(
    st.lists(st.integers(1, 4), min_size=3, max_size=3),
    st.lists(st.sampled_from([0, 1, 2, 4, 8]), min_size=3, max_size=3),
    st.sampled_from(["float8_e4m3fn", "int8"]), st.sampled_from(["float32", "bfloat16"]), st.booleans(),
    AXES, AXES, FORMS, FORMS, st.sampled_from(["bfloat16", "float32"]), st.integers(1, 100),
)  # fmt: skip
def test_any_grids(
    sizes: list[int], tile: list[int], codes_dtype: str, scale_dtype: str, has_zeros: bool, of_codes: Any, of_target: Any, stored: Any, target: Any,
    dtype: Dequantized, most: int,
) -> None:  # fmt: skip
    """Codes, scales and targets are cut in any way, also within blocks, and blocks may be ragged."""
    shape = (sizes[0] * 2, sizes[1] * 6, sizes[2] * 6)
    blocks = tuple(-(-n // t) if t else 1 for n, t in zip(shape, tile, strict=True))
    codes, scale = random_codes(shape, of(codes_dtype)), random_scale(blocks, of(scale_dtype))
    tree = {"codes": codes, "scale": scale}
    zeros = np.random.default_rng(1).integers(-9, 9, blocks).astype(np.int8) if has_zeros else None
    if zeros is not None:
        tree["zeros"] = zeros
    each = None if zeros is None else spread(zeros, shape, tile)
    wanted = weights(codes, spread(scale, shape, tile), dtype, each)

    def split(axes: Any, name: str) -> dict[str, Any]:
        rules = [{"match": name, "axes": list(axes)}]
        return {
            "mesh": {"axes": ["x", "y"], "shape": [2, 3]},
            "rules": rules,
            "unmatched": "replicate",
        }

    fits = all(
        n % {"x": 2, "y": 3}.get(axis or "", 1) == 0
        for n, axis in zip(shape, of_codes, strict=True)
    )
    fits_target = all(
        n % {"x": 2, "y": 3}.get(axis or "", 1) == 0
        for n, axis in zip(shape, of_target, strict=True)
    )
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr("reshard.formats.computed.tensors.CHUNK_BYTES", 256)
        patch.setattr(CodesFormula, "window_elements", most)
        reshard.save(f"{folder}/plain", tree)
        reshard.convert(
            f"{folder}/plain",
            f"{folder}/cut",
            layout=split(of_codes if fits else (None,) * 3, "^codes$"),
            **stored,
        )
        made = ByHand(tuple(n or 1 for n in tile), dtype, has_zeros)
        chosen = replace(CheckpointPath.at(f"{folder}/cut"), computed=(made,))
        opened = OpenedCheckpoint(chosen)
        part = np.frombuffer(b"".join(opened.stream("codes", "1:2,1:5,2:4")), of(dtype))
        assert_same(part.reshape(1, 4, 2), wanted[1:2, 1:5, 2:4])
        convert(
            chosen,
            Path(folder, "made"),
            layout=split(of_target if fits_target else (None,) * 3, "^codes$"),
            **target,
        )
        found = reshard.restore(f"{folder}/made")
        assert list(found) == ["codes"]
        assert_same(np.asarray(found["codes"]), wanted)
