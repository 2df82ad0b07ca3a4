"""Whole checkpoints are dequantised as their programs define it; what is not known is refused before a byte moves."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import reshard
from reshard.arithmetic.coded import KEEP, weight_name
from reshard.arithmetic.dequantize import Dequantize, dequantized
from reshard.errors import PlanError
from reshard.formats.quantized import QuantizedPair
from reshard.formats.registry import open_reader
from tests.arithmetic.quantised import (
    BF16,
    E4M3,
    assert_same,
    convert,
    dequantising,
    random_codes,
    random_scale,
    restored,
    save_model,
    spread,
    weights,
)
from tests.oracles.oracle import Oracle
from tests.orbax_trees import nested

E8M0 = np.dtype(ml_dtypes.float8_e8m0fnu)
BLOCKS = {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 128]}
L = "model.layers.0"
PLAIN = {
    "model.norm.weight": np.ones(64, BF16),
    "model.embed_tokens.weight": np.ones((8, 64), BF16),
}


def group(strategy: str, kind: str = "float", bits: int = 8, **more: Any) -> dict[str, Any]:
    weights = {
        "num_bits": bits,
        "type": kind,
        "strategy": strategy,
        "symmetric": True,
        "dynamic": False,
    }
    return {
        "targets": ["Linear"],
        "weights": weights | more,
        "input_activations": weights | {"strategy": "tensor"},
    }


def compressed(form: str, *groups: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "quant_method": "compressed-tensors",
        "format": form,
        "quantization_status": "compressed",
        "config_groups": {f"group_{n}": each for n, each in enumerate(groups)},
        "ignore": ["lm_head"],
    }


def exponents(shape: Sequence[int], dtype: Any) -> np.ndarray:
    return np.random.default_rng(2).integers(110, 130, shape).astype(np.uint8).view(dtype)


class Case:
    """A checkpoint: codes, scales and blocks by module; ``ending`` follows the name of the codes, or replaces their last part."""

    def __init__(
        self,
        config: Mapping[str, Any] | None,
        ending: str,
        *modules: tuple[str, np.ndarray, np.ndarray, tuple[int, ...]],
        exact: bool = False,
    ) -> None:
        self.config, self.ending, self.modules, self.exact = config, ending, modules, exact


def block(
    name: str,
    shape: Sequence[int],
    tile: tuple[int, ...] = (128, 128),
    make: Callable[[Sequence[int]], np.ndarray] = random_scale,
) -> tuple[str, np.ndarray, np.ndarray, tuple[int, ...]]:
    scale = make([-(-n // t) if t else 1 for n, t in zip(shape, tile, strict=True)])
    return name, random_codes(shape), scale, tile


RELEASES = {
    "DeepSeek-V3": Case(
        BLOCKS,
        "_scale_inv",
        block(f"{L}.self_attn.kv_a_proj_with_mqa.weight", (576, 256)),
        block(f"{L}.mlp.experts.0.up_proj.weight", (256, 128)),
    ),
    "DeepSeek-V3.1, whose scales are exponents": Case(
        BLOCKS | {"scale_fmt": "ue8m0"},
        "_scale_inv",
        block(f"{L}.mlp.up_proj.weight", (200, 256), make=lambda s: exponents(s, E8M0)),
        exact=True,
    ),
    "the same as bytes": Case(
        BLOCKS,
        "_scale_inv",
        block(f"{L}.mlp.up_proj.weight", (256, 256), make=lambda s: exponents(s, np.uint8)),
        exact=True,
    ),
    "Qwen3-FP8": Case(
        BLOCKS | {"modules_to_not_convert": ["lm_head"]},
        "_scale_inv",
        block(f"{L}.mlp.gate_proj.weight", (384, 128), make=lambda s: random_scale(s, BF16)),
    ),
    "GLM-FP8, by channel": Case(
        compressed("float-quantized", group("channel")),
        "_scale",
        block(f"{L}.mlp.up_proj.weight", (48, 64), (1, 0), lambda s: random_scale(s, BF16)),
    ),
    "unsloth's mixed groups": Case(
        compressed(
            "mixed-precision",
            group("block", block_structure=[128, 128]) | {"format": "float-quantized"},
            group("channel") | {"format": "float-quantized"},
        ),
        "_scale",
        block(f"{L}.mlp.up_proj.weight", (160, 256)),
        block(
            f"{L}.mlp.experts.0.up_proj.weight", (160, 64), (1, 0), lambda s: random_scale(s, BF16)
        ),
    ),
    "Llama of old vLLM": Case(
        {"quant_method": "fp8", "activation_scheme": "static"},
        "_scale",
        (f"{L}.mlp.up_proj.weight", random_codes((48, 64)), random_scale((1,)), (0,)),
    ),
    "experts in one tensor": Case(
        BLOCKS, "_scale_inv", block(f"{L}.mlp.experts.gate_up_proj", (3, 256, 200), (1, 128, 128))
    ),
    "a scale for each expert": Case(
        None,
        "_scale",
        (
            f"{L}.mlp.experts.gate_up_proj",
            random_codes((3, 16, 20)),
            random_scale((3, 1, 1)),
            (1, 0, 0),
        ),
    ),
    "mxfp8": Case(
        compressed("mxfp8-quantized", group("group", group_size=32, scale_dtype="torch.uint8")),
        "_scale",
        block(f"{L}.mlp.up_proj.weight", (48, 64), (1, 32), lambda s: exponents(s, np.uint8)),
        exact=True,
    ),
    "int8 by channel": Case(
        compressed("int-quantized", group("channel", "int")),
        "_scale",
        (
            f"{L}.mlp.up_proj.weight",
            random_codes((48, 64), np.int8),
            random_scale((48, 1), BF16),
            (1, 0),
        ),
    ),
}


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("release", RELEASES)
def test_a_release(release: str, dtype: str, tmp_path: Path) -> None:
    """Weights and scales lie in different files; through Orbax and back."""
    case = RELEASES[release]
    codes, scales, wanted = dict(PLAIN), {}, dict(PLAIN)
    for name, values, scale, tile in case.modules:
        codes[name], scales[f"{name}{case.ending}"] = values, scale
        if name.endswith(".weight"):
            scales[f"{name.removesuffix('weight')}input_scale"] = np.ones((), np.float32)
        each = spread(
            scale.reshape(-1, *(1,) * (values.ndim - 1)) if len(tile) == 1 else scale,
            values.shape,
            tile if len(tile) > 1 else (0, 0),
        )
        wanted[name] = weights(values, each, dtype)
    source = save_model(tmp_path / "source", [codes, scales], case.config)
    found = restored(source, dtype)
    assert found.keys() == wanted.keys()
    for name in wanted:
        assert_same(found[name], wanted[name])
    reshard.convert(source, tmp_path / "pairs", to="orbax")
    from_pairs = restored(tmp_path / "pairs", dtype)
    assert {n: from_pairs[n].tobytes() for n in wanted} == {
        n: a.tobytes() for n, a in found.items()
    }
    convert(dequantising(source, dtype), tmp_path / "orbax", to="orbax")
    reshard.convert(tmp_path / "orbax", tmp_path / "back", to="safetensors")
    back = reshard.restore(tmp_path / "back")
    assert {n: np.asarray(back[n]).tobytes() for n in wanted} == {
        n: a.tobytes() for n, a in wanted.items()
    }
    reader = open_reader(dequantising(source, dtype))
    facts = dequantized(reader)
    assert facts.keys() == {name for name, *_ in case.modules}
    assert {exact for _, exact in facts.values()} == {case.exact}
    assert dequantized(open_reader(str(source))) == {}
    assert all(scheme.startswith(("fp8", "int8")) for scheme, _ in facts.values())


NAMES = {
    "mlp.weight_packed": "mlp.weight", "mlp.qweight": "mlp.weight", "mlp.up_packed": "mlp.up", "mlp.up_blocks": "mlp.up", "mlp._weight_qdata": "mlp.weight",
    "mlp.weight._data": "mlp.weight", "kernel/array/qvalue": "kernel", "kernel.array.qvalue": "kernel", "kernel/qvalue": "kernel", "weight": "weight",
    "_weight_qdata": "weight", "layers/dense/_weight_qdata": "layers/dense/weight",
}  # fmt: skip


def test_weights_have_the_names_that_they_have_without_codes() -> None:
    pairs = [QuantizedPair(name, "", {}, (), "") for name in NAMES]
    assert [weight_name(pair) for pair in pairs] == list(NAMES.values())


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_int8_of_bitsandbytes(tmp_path: Path, dtype: str) -> None:
    """Two products in float32: its scale is the largest weight of a row."""
    codes, scale = random_codes((64, 64), np.int8), random_scale((64,))
    tensors = {"a.weight": codes, "a.SCB": scale, "a.weight_format": np.zeros((), np.uint8)}
    source = save_model(tmp_path / "source", [tensors], {"quant_method": "bitsandbytes"})
    wanted = codes.astype(np.float32) * scale[:, None] * np.float32(7.874015718698502e-3)
    found = restored(source, dtype)
    assert found.keys() == {"a.weight"}
    assert_same(found["a.weight"], wanted.astype(getattr(ml_dtypes, dtype, dtype)))


TREES: dict[str, tuple[str, Any, tuple[int, ...], np.ndarray | None]] = {
    "array/qvalue": (
        "kernel",
        np.int8,
        (24, 1),
        np.arange(3 * 64).reshape(3, 64).astype(np.int8) - 90,
    ),
    "qvalue": ("kernel", ml_dtypes.int4, (24, 0), None),
    "qrhs/frozen/qvalue": ("kernel/qrhs/frozen", E4M3, (0, 1), None),
}


@pytest.mark.parametrize("scale_dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("ending", TREES)
def test_trees_of_qwix_and_aqt(ending: str, scale_dtype: str, tmp_path: Path) -> None:
    plain, dtype, tile, zeros = TREES[ending]
    codes = random_codes((72, 64), dtype)
    scale = random_scale(
        [n // t if t else 1 for n, t in zip(codes.shape, tile, strict=True)],
        getattr(ml_dtypes, scale_dtype, scale_dtype),
    )
    stem = f"params/kernel/{ending.removesuffix('qvalue')}"
    tree = {
        f"{stem}qvalue": codes,
        f"{stem}scale/0" if "frozen" in stem else f"{stem}scale": scale,
        "params/bias": np.ones(64, np.float32),
    }
    if zeros is not None:
        tree[f"{stem}zero_point"] = zeros
    reshard.save(tmp_path / "source", nested(tree))
    found = restored(tmp_path / "source")
    assert found.keys() == {f"params/{plain}", "params/bias"}
    each = None if zeros is None else spread(zeros, codes.shape, tile)
    assert_same(
        found[f"params/{plain}"], weights(codes, spread(scale, codes.shape, tile), zeros=each)
    )


def refused(source: Path) -> str:
    with pytest.raises(PlanError) as error:
        open_reader(dequantising(source))
    return str(error.value).replace(str(source), "SOURCE")


CODES, SCALE = random_codes((256, 128)), random_scale((2, 1))
PAIR = {"a.weight": CODES, "a.weight_scale_inv": SCALE}
CUT = "look for files that are missing, or "
BAD: dict[str, tuple[dict[str, np.ndarray], dict[str, Any] | None, str]] = {
    "no codes": (
        PLAIN,
        None,
        "SOURCE has no quantised weights; leave this out, or give the checkpoint that has codes and scales (dequantize)",
    ),
    "no scale": (
        {**PAIR, "b.weight": CODES},
        BLOCKS,
        f"SOURCE has 1 tensor of codes with no scale that fits ('b.weight', float8_e4m3fn [256, 128]); {CUT}{KEEP}",
    ),
    "no scale at all": (
        {f"{n}.weight": CODES for n in "abcd"},
        None,
        "SOURCE has 4 tensors of codes with no scale that fits ('a.weight', float8_e4m3fn [256, 128]; 'b.weight', float8_e4m3fn [256, 128]; "
        f"'c.weight', float8_e4m3fn [256, 128]; …); {CUT}{KEEP}",
    ),
    "no scale of packed codes": (
        {**PAIR, "b.weight_packed": np.zeros((8, 8), np.int32)},
        None,
        f"SOURCE has 1 tensor of codes with no scale that fits ('b.weight_packed', int32 [8, 8]); {CUT}{KEEP}",
    ),
    "float64, which is no float6": (
        {"a.array.qvalue": np.zeros((8, 8)), "a.array.scale": random_scale((1, 8))},
        None,
        f"SOURCE has 1 tensor of codes with no scale that fits ('a.array.qvalue', float64 [8, 8]); {CUT}{KEEP}",
    ),
    "no codes of a scale": (
        {**PAIR, "b.weight_scale": SCALE},
        BLOCKS,
        f"SOURCE has 1 tensor of scales with no codes that fit ('b.weight_scale', float32 [2, 1]); {CUT}{KEEP}",
    ),
    "int8 whose scale does not fit": (
        {"b.weight": np.zeros((6, 6), np.int8), "b.weight_scale": random_scale((4, 5))},
        None,
        f"SOURCE has 1 tensor of scales with no codes that fit ('b.weight_scale', float32 [4, 5]); {CUT}{KEEP}",
    ),
    "fp8 whose scale does not fit": (
        {"a.weight": CODES, "a.weight_scale_inv": random_scale((3, 200))},
        BLOCKS,
        f"'a.weight' cannot be dequantised: 'a.weight_scale_inv' is float32 of shape [3, 200], which does not fit codes of float8_e4m3fn and of shape [256, 128]; {KEEP}",
    ),
    "more scales than codes": (
        {"a.weight": CODES[None], "a.weight_scale": random_scale((256, 1))},
        None,
        f"'a.weight' cannot be dequantised: 'a.weight_scale' is float32 of shape [256, 1], which does not fit codes of float8_e4m3fn and of shape [1, 256, 128]; {KEEP}",
    ),
    "a list of scales for a square": (
        {"a": random_codes((64, 64)), "a_scale": random_scale((64,))},
        None,
        f"'a' cannot be dequantised: 'a_scale' has 64 scales, and codes of the shape [64, 64] have several dimensions of that size; {KEEP}",
    ),
    "zero points of another shape": (
        {
            "a.weight": np.zeros((8, 8), np.int8),
            "a.weight_scale": random_scale((8, 1)),
            "a.weight_zero_point": np.zeros((1, 1), np.int8),
        },
        None,
        f"'a.weight' cannot be dequantised: the shape [1, 1] of 'a.weight_zero_point' should be that of 'a.weight_scale', [8, 1]; {KEEP}",
    ),
    "another companion": (
        {**PAIR, "a.weight_g_idx": np.zeros(128, np.int32)},
        None,
        f"'a.weight' cannot be dequantised: nothing is known to do with 'a.weight_g_idx' for fp8, blocks of 128; {KEEP}",
    ),
    "scales in float64": (
        {"a.weight": CODES, "a.weight_scale_inv": SCALE.astype(np.float64)},
        BLOCKS,
        f"'a.weight' cannot be dequantised: codes of float8_e4m3fn with a scale of float64 are not known; {KEEP}",
    ),
    "int8 that may be fp4": (
        {"a.weight": np.zeros((64, 64), np.int8), "a.scale": exponents((64, 4), E8M0)},
        None,
        f"'a.weight' cannot be dequantised: int8 with powers of two as scales may hold pairs of fp4; {KEEP}",
    ),
    "a scale of more dimensions": (
        {"a.weight": random_codes((8,)), "a.weight_scale": random_scale((8, 2))},
        None,
        f"'a.weight' cannot be dequantised: 'a.weight_scale' is float32 of shape [8, 2], which does not fit codes of float8_e4m3fn and of shape [8]; {KEEP}",
    ),
    "EETQ": (
        {"a.weight": np.zeros((8, 4), np.int8), "a.weight_scales": random_scale((4,), np.float16)},
        None,
        f"'a.weight' cannot be dequantised: EETQ stores codes in the order of its kernels; {KEEP}",
    ),
    "Keras": (
        {"a.kernel": np.zeros((8, 4), np.int8), "a.kernel_scale": random_scale((4,))},
        None,
        f"'a.kernel' cannot be dequantised: Keras divides codes by such a scale, and others multiply them; {KEEP}",
    ),
    "quanto": (
        {
            "a.weight._data": np.zeros((8, 4), np.int8),
            "a.weight._scale": random_scale((8, 1)),
            "a.weight._shift": random_scale((8, 1)),
        },
        None,
        f"'a.weight._data' cannot be dequantised: nothing is known to do with 'a.weight._shift' for int8, a scale for each channel; {KEEP}",
    ),
    "both names": (
        {
            "a/qvalue": np.zeros((8, 8), np.int8),
            "a/scale": random_scale((1, 8)),
            "a": np.ones(8, BF16),
        },
        None,
        f"SOURCE has both 'a' and 'a/qvalue', whose weights would have that name; {KEEP}",
    ),
    "inputs are multiplied": (
        {**PAIR, "a.pre_quant_scale": np.ones(128, BF16)},
        None,
        f"SOURCE has 'a.pre_quant_scale', and codes and scales without it are not the weights; {KEEP}",
    ),
    "no decoder": (
        {
            "a.weight": np.zeros((8, 8), np.uint32),
            "a.scales": random_scale((8, 1), BF16),
            "a.biases": random_scale((8, 1), BF16),
        },
        None,
        f"'a.weight' cannot be dequantised: no decoder is known for MLX; {KEEP}",
    ),
    "a method": (
        PAIR,
        {"quant_method": "aqlm"},
        "the config of SOURCE has the quant_method 'aqlm', which is not known; expected one of awq, bitsandbytes, compressed-tensors, fbgemm_fp8, fp8, gptq, "
        f"modelopt, modelopt_fp4, mxfp4, mxfp8, quanto, torchao; {KEEP}",
    ),
    "a format": (
        PAIR,
        compressed("marlin-24"),
        "the config of SOURCE has the format 'marlin-24', which is not known; expected one of dense, float-quantized, int-quantized, mixed-precision, "
        f"mxfp4-pack-quantized, mxfp8-quantized, naive-quantized, nvfp4-pack-quantized, pack-quantized; {KEEP}",
    ),
    "the format of a group": (
        PAIR,
        compressed("mixed-precision", group("block") | {"format": "x"}),
        "the config of SOURCE has the group 'group_0' of the format 'x', which is not known; expected one of dense, float-quantized, int-quantized, mixed-precision, "
        f"mxfp4-pack-quantized, mxfp8-quantized, naive-quantized, nvfp4-pack-quantized, pack-quantized; {KEEP}",
    ),
    "a rotation": (
        PAIR,
        compressed("float-quantized") | {"transform_config": {"config_groups": {"u": {}}}},
        f"the config of SOURCE has a transform_config, so that codes and scales are not all that makes a weight; {KEEP}",
    ),
    "sparse weights": (
        PAIR,
        compressed("float-quantized") | {"sparsity_config": {"format": "sparse-24-bitmask"}},
        f"the config of SOURCE has a sparsity_config, so that codes and scales are not all that makes a weight; {KEEP}",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_what_is_not_known_is_refused(case: str, tmp_path: Path) -> None:
    tensors, config, text = BAD[case]
    assert refused(save_model(tmp_path / "source", [tensors], config)) == text


def test_another_dtype_is_refused() -> None:
    with pytest.raises(PlanError, match="dequantize"):
        Dequantize.asked("float16")


def test_one_of_two_names_is_taken_by_a_weight(tmp_path: Path) -> None:
    """A dense sparsity_config says nothing, and a config in the model's part for text is found."""
    config = compressed("float-quantized") | {
        "sparsity_config": {"format": "dense"},
        "transform_config": {},
    }
    source = save_model(tmp_path / "source", [PAIR, PLAIN], config)
    assert restored(source).keys() == {"a.weight", *PLAIN}


@pytest.mark.xdist_group("torch")
@pytest.mark.parametrize(
    "release",
    ["DeepSeek-V3", "GLM-FP8, by channel", "unsloth's mixed groups", "int8 by channel", "mxfp8"],
)
def test_compressed_tensors_gives_the_same_bits(
    torch: Oracle, release: str, tmp_path: Path
) -> None:
    case = RELEASES[release]
    config = case.config
    if release == "unsloth's mixed groups":  # its groups are told apart by names
        groups = config["config_groups"]
        groups["group_0"]["targets"], groups["group_1"]["targets"] = (
            ["re:.*0.mlp.up_proj"],
            ["re:.*experts.*"],
        )
    tensors = {
        n: v
        for name, codes, scale, _ in case.modules
        for n, v in ((name, codes), (f"{name}{case.ending}", scale))
    }
    source = save_model(tmp_path / "source", [tensors], config)
    convert(dequantising(source), tmp_path / "made", to="safetensors")
    wanted = torch.ask("decompressed", folder=str(source))
    assert wanted
    assert torch.ask("stored_tensors", folder=str(tmp_path / "made")) == wanted
