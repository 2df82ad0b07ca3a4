"""Codes and what says their meaning are found together, in every layout that programs write, and nothing else is taken for them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import reshard
from reshard.formats.quantized import MAX_CONFIG_BYTES, Quantized, find_pairs
from reshard.geometry.grid import Grid
from reshard.layout.tensor_spec import TensorSpec

Tensors = dict[str, tuple[str, list[int]]]
BLOCKS = {"quant_method": "fp8", "weight_block_size": [128, 128]}
L = "model.layers.0.mlp.up_proj"

LAYOUTS: dict[str, tuple[Tensors, Mapping[str, Any] | None, str, list[int]]] = {
    "fp8 in blocks": (
        {f"{L}.weight": ("float8_e4m3fn", [512, 384]), f"{L}.weight_scale_inv": ("float32", [4, 3])},
        BLOCKS, "fp8, blocks of 128×128", [128, 128],
    ),
    "fp8 in blocks that do not fill the tensor": (
        {f"{L}.weight": ("float8_e4m3fn", [576, 64]), f"{L}.weight_scale_inv": ("float32", [5, 1])},
        BLOCKS, "fp8, blocks of 128×128", [128, 128],
    ),
    "the same without a config": (
        {f"{L}.weight": ("float8_e4m3fn", [576, 64]), f"{L}.weight_scale_inv": ("float8_e8m0fnu", [5, 1])},
        None, "fp8, blocks of 128", [128, 1],
    ),
    "experts in one tensor": (
        {"experts.gate_up_proj": ("float8_e4m3fn", [8, 512, 256]), "experts.gate_up_proj_scale_inv": ("float32", [8, 4, 2])},
        BLOCKS, "fp8, blocks of 128×128", [1, 128, 128],
    ),
    "DeepSeek's own names": (
        {"layers.0.attn.wq_a.weight": ("float8_e4m3fn", [256, 512]), "layers.0.attn.wq_a.scale": ("float8_e8m0fnu", [2, 4])},
        None, "fp8, blocks of 128×128", [128, 128],
    ),
    "fp8 with one scale": (
        {f"{L}.weight": ("float8_e4m3fn", [48, 64]), f"{L}.weight_scale": ("float32", []), f"{L}.input_scale": ("float32", [])},
        {"quant_method": "fp8"}, "fp8, a scale for each", [1, 1],
    ),
    "fp8 by channel": (
        {f"{L}.weight": ("float8_e4m3fn", [48, 64]), f"{L}.weight_scale": ("bfloat16", [48, 1])},
        None, "fp8, a scale for each channel", [1, 1],
    ),
    "int8 by channel": (
        {f"{L}.weight": ("int8", [48, 64]), f"{L}.weight_scale": ("bfloat16", [48])},
        None, "int8, a scale for each channel", [1, 1],
    ),
    "blocks of compressed-tensors": (
        {f"{L}.weight": ("float8_e4m3fn", [100, 640]), f"{L}.weight_scale": ("bfloat16", [2, 7])},
        {"config_groups": {"group_0": {"weights": {"strategy": "block", "block_structure": [64, 96]}}}},
        "fp8, blocks of 64×96", [64, 96],
    ),
    "packed int4 in groups of 128, with zero points": (
        {f"{L}.weight_packed": ("int32", [64, 64]), f"{L}.weight_scale": ("bfloat16", [64, 4]), f"{L}.weight_shape": ("int64", [2]),
         f"{L}.weight_zero_point": ("int32", [8, 4])},
        None, "packed integers", [8, 16],
    ),
    "packed int4 with groups in any order": (
        {f"{L}.weight_packed": ("int32", [64, 64]), f"{L}.weight_scale": ("bfloat16", [64, 4]), f"{L}.weight_g_idx": ("int32", [512])},
        None, "packed integers", [1, 64],
    ),
    "nvfp4 of compressed-tensors": (
        {f"{L}.weight_packed": ("uint8", [64, 128]), f"{L}.weight_scale": ("float8_e4m3fn", [64, 16]),
         f"{L}.weight_global_scale": ("float32", [1]), f"{L}.input_global_scale": ("float32", [1])},
        None, "nvfp4, blocks of 16", [1, 8],
    ),
    "nvfp4 of ModelOpt": (
        {f"{L}.weight": ("uint8", [64, 128]), f"{L}.weight_scale": ("float8_e4m3fn", [64, 16]),
         f"{L}.weight_scale_2": ("float32", []), f"{L}.input_scale": ("float32", [])},
        None, "nvfp4, blocks of 16", [1, 8],
    ),
    "nvfp4 of ModelOpt, experts of Llama 4": (
        {"experts.gate_up_proj": ("uint8", [4, 64, 48]), "experts.gate_up_proj_weight_scale": ("float8_e4m3fn", [4, 8, 48]),
         "experts.gate_up_proj_weight_scale_2": ("float32", []), "experts.gate_up_proj_input_scale": ("float32", [])},
        None, "nvfp4, blocks of 16", [1, 8, 1],
    ),
    "mxfp4 of gpt-oss": (
        {"experts.gate_up_proj_blocks": ("uint8", [4, 64, 8, 16]), "experts.gate_up_proj_scales": ("uint8", [4, 64, 8])},
        None, "mxfp4, blocks of 32", [1, 1, 1, 16],
    ),
    "mxfp4 of compressed-tensors": (
        {f"{L}.weight_packed": ("uint8", [64, 64]), f"{L}.weight_scale": ("uint8", [64, 4])},
        None, "mxfp4, blocks of 32", [1, 16],
    ),
    "mxfp4 as float4": (
        {f"{L}.weight": ("float4_e2m1fn_x2", [64, 64]), f"{L}.weight_scale": ("float8_e8m0fnu", [64, 4])},
        None, "fp4, blocks of 32", [1, 16],
    ),
    "mxfp8": (
        {f"{L}.weight": ("float8_e4m3fn", [64, 128]), f"{L}.weight_scale": ("uint8", [64, 4])},
        None, "fp8, blocks of 32", [1, 32],
    ),
    "AWQ": (
        {f"{L}.qweight": ("int32", [256, 16]), f"{L}.qzeros": ("int32", [2, 16]), f"{L}.scales": ("float16", [2, 128])},
        {"quant_method": "awq"}, "AWQ or GPTQ", [128, 1],
    ),
    "GPTQ in order": (
        {f"{L}.qweight": ("int32", [32, 128]), f"{L}.qzeros": ("int32", [2, 16]), f"{L}.scales": ("float16", [2, 128]), f"{L}.g_idx": ("int32", [256])},
        {"quant_method": "gptq", "desc_act": False}, "AWQ or GPTQ", [16, 8],
    ),
    "GPTQ with groups in any order": (
        {f"{L}.qweight": ("int32", [32, 128]), f"{L}.qzeros": ("int32", [2, 16]), f"{L}.scales": ("float16", [2, 128]), f"{L}.g_idx": ("int32", [256])},
        {"quant_method": "gptq", "desc_act": True}, "AWQ or GPTQ", [32, 8],
    ),
    "4 bits of bitsandbytes, scales in codes too": (
        {f"{L}.weight": ("uint8", [8192, 1]), f"{L}.weight.absmax": ("uint8", [256]), f"{L}.weight.quant_map": ("float32", [16]),
         f"{L}.weight.nested_absmax": ("float32", [1]), f"{L}.weight.nested_quant_map": ("float32", [256]),
         f"{L}.weight.quant_state.bitsandbytes__nf4": ("uint8", [90])},
        {"quant_method": "bitsandbytes"}, "4 bits of bitsandbytes", [32, 1],
    ),
    "int8 of bitsandbytes": (
        {f"{L}.weight": ("int8", [48, 64]), f"{L}.SCB": ("float32", [48]), f"{L}.weight_format": ("uint8", [])},
        None, "int8 of bitsandbytes, a scale for each channel", [1, 1],
    ),
    "MLX": (
        {f"{L}.weight": ("uint32", [64, 48]), f"{L}.scales": ("bfloat16", [64, 6]), f"{L}.biases": ("bfloat16", [64, 6])},
        {"group_size": 64, "bits": 4}, "MLX", [1, 8],
    ),
    "mxfp4 of MLX, experts in one tensor": (
        {"switch_mlp.up_proj.weight": ("uint32", [4, 64, 48]), "switch_mlp.up_proj.scales": ("uint8", [4, 64, 12])},
        None, "MLX", [1, 1, 4],
    ),
    "fp8 of torchao": (
        {"up_proj._weight_qdata": ("float8_e4m3fn", [48, 64]), "up_proj._weight_scale": ("float32", [48, 1])},
        None, "fp8, a scale for each channel", [1, 1],
    ),
    "int4 of torchao, whose scales are transposed": (
        {"up_proj._weight_qdata": ("uint8", [64, 32]), "up_proj._weight_scale": ("bfloat16", [2, 64]), "up_proj._weight_zero_point": ("bfloat16", [2, 64])},
        None, "packed by torchao", [64, 32],
    ),
    "quanto": (
        {f"{L}.weight._data": ("int8", [48, 64]), f"{L}.weight._scale": ("float32", [48, 1])},
        None, "int8, a scale for each channel", [1, 1],
    ),
    "ComfyUI": (
        {f"{L}.weight": ("float8_e4m3fn", [48, 64]), f"{L}.scale_weight": ("float32", []), f"{L}.scale_input": ("float32", [])},
        None, "fp8, a scale for each", [1, 1],
    ),
    "EETQ": (
        {f"{L}.weight": ("int8", [64, 48]), f"{L}.weight_scales": ("float16", [48])},
        None, "int8, a scale for each channel", [1, 1],
    ),
    "Keras": (
        {"layers/dense/kernel": ("int8", [64, 48]), "layers/dense/kernel_scale": ("float32", [48])},
        None, "int8, a scale for each channel", [1, 1],
    ),
    "scales in an order of their own": (
        {f"{L}.weight": ("float8_e4m3fn", [100, 64]), f"{L}.weight_scale": ("float8_e8m0fnu", [512])},
        None, "fp8, blocks of unknown form", [100, 64],
    ),
    "Qwix": (
        {"layer_0/kernel/array/qvalue": ("int8", [72, 64]), "layer_0/kernel/array/scale": ("bfloat16", [3, 64]),
         "layer_0/kernel/array/zero_point": ("bfloat16", [3, 64])},
        None, "int8, blocks of 24", [24, 1],
    ),
    "Qwix in int4": (
        {"kernel/array/qvalue": ("int4", [64, 64]), "kernel/array/scale": ("float32", [2, 1])},
        None, "int4, blocks of 32", [32, 1],
    ),
    "AQT": (
        {"aqt/mlp/wi/AqtDotGeneral_0/qrhs/frozen/qvalue": ("int8", [1, 64, 32]), "aqt/mlp/wi/AqtDotGeneral_0/qrhs/frozen/scale/0": ("float32", [1, 1, 32])},
        None, "int8, a scale for each channel", [1, 1, 1],
    ),
}  # fmt: skip


def found(tensors: Tensors, config: Mapping[str, Any] | None = None) -> Quantized | None:
    specs = {
        name: TensorSpec(name, tuple(shape), dtype, Grid.whole(shape))
        for name, (dtype, shape) in tensors.items()
    }
    return find_pairs(specs, lambda: config)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("separator", "./")
def test_a_layout_is_recognised(layout: str, separator: str) -> None:
    """Under the names of its program and under those of a tree; what lies beside it is in no pair."""
    tensors, config, scheme, grain = LAYOUTS[layout]
    tensors = {name.replace(".", separator): of for name, of in tensors.items()}
    beside: Tensors = {
        f"norm{separator}weight": ("bfloat16", [64]),
        f"norm{separator}scale": ("float32", [64]),
        f"attn{separator}k_scale": ("float32", []),
        "step": ("int32", []),
    }
    quantized = found(tensors | beside, config)
    assert quantized is not None
    (pair,) = quantized.pairs.values()
    assert pair.scheme == scheme
    assert pair.grain == tuple(grain)
    assert set(pair.halves) == set(tensors)
    assert pair.name == next(iter(tensors))
    assert quantized.text == f"{scheme}: 1 weight with scales, 4 as they are"


OTHERS: dict[str, Tensors] = {
    "floats beside scales": {
        "ln/scale": ("float32", [64]), "logit_scale": ("float32", []), "x": ("float32", [4]), "x_scale": ("float32", []),
        "a.weight": ("bfloat16", [8, 8]), "a.weight_scale": ("float32", [8, 1]), "b.weight": ("bfloat16", [8]), "b.scale": ("float32", [8]),
    },
    "integers beside other shapes": {"m.weight": ("int8", [64, 64]), "m.weight_scale": ("float32", [7, 5]), "n.weight": ("int8", [64]), "n.scale": ("float32", [3, 3])},
    "a scale that is no number": {"a.weight": ("int8", [64, 64]), "a.weight_scale": ("int64", [64, 1])},
    "halves of other weights": {"a.weight": ("float8_e4m3fn", [64, 64]), "b.weight_scale": ("float32", [64, 1])},
    "no elements": {"a.weight": ("int8", [0, 64]), "a.weight_scale": ("float32", [3, 1])},
    "names that only end alike": {"my_qvalue": ("int8", [4]), "scale": ("float32", [1]), "qvalue": ("int8", [4])},
    "nothing": {},
}  # fmt: skip


@pytest.mark.parametrize("others", OTHERS)
def test_nothing_else_is_a_pair(others: str) -> None:
    assert found(OTHERS[others]) is None


def test_the_config_is_asked_only_where_it_may_matter() -> None:
    asked: list[str] = []

    def config() -> None:
        asked.append("config")

    plain = {name: TensorSpec(name, (4,), "bfloat16", Grid.whole((4,))) for name in "ab"}
    assert find_pairs(plain, config) is None
    assert asked == []
    codes = {"a": TensorSpec("a", (4,), "float8_e4m3fn", Grid.whole((4,)))}
    assert find_pairs(codes, config) is None
    assert asked == ["config"]


def test_several_kinds_are_counted_apart() -> None:
    tensors: Tensors = {
        "a.weight": ("float8_e4m3fn", [256, 256]), "a.weight_scale_inv": ("float32", [2, 2]),
        "b.weight": ("float8_e4m3fn", [256, 256]), "b.weight_scale_inv": ("float32", [2, 2]),
        "c.weight": ("int8", [4, 4]), "c.weight_scale": ("float32", [4, 1]), "d.weight": ("bfloat16", [4]),
    }  # fmt: skip
    quantized = found(tensors)
    assert quantized is not None
    assert quantized.text == (
        "fp8, blocks of 128×128: 2 weights with scales; int8, a scale for each channel: 1 weight with scales, 1 as they are"
    )


@pytest.mark.parametrize(
    "config",
    [{"weight_block_size": [128, "x"]}, {"weight_block_size": -1}, {"weight_block_size": [0, 0]}, {"config_groups": [1]}, {"config_groups": {"a": 1}}],
)  # fmt: skip
def test_a_config_that_makes_no_sense_says_nothing(config: dict[str, Any]) -> None:
    tensors, _, _, _ = LAYOUTS["the same without a config"]
    quantized = found(tensors, config)
    assert quantized is not None
    assert next(iter(quantized.pairs.values())).grain == (128, 1)


def model(folder: Path, *, has_scale: bool = True) -> Path:
    """A weight of fp8 that only a config says to be in blocks of 128."""
    folder.mkdir()
    sizes = {"a.weight": ("F8_E4M3", [576, 64], 576 * 64), "a.norm": ("BF16", [64], 128)}
    if has_scale:
        sizes["a.weight_scale_inv"] = ("F32", [5, 1], 20)
    header, at = {}, 0
    for name, (dtype, shape, size) in sizes.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header).encode()
    data = len(text).to_bytes(8, "little") + text + bytes(at)
    (folder / "model.safetensors").write_bytes(data)
    return folder


def said(source: Path) -> str:
    info = reshard.inspect(source)
    assert info.to_dict()["quantized"] == info.quantized
    return info.quantized


def test_the_config_beside_the_weights_is_read(tmp_path: Path) -> None:
    folder, in_128 = (
        model(tmp_path / "a"),
        "fp8, blocks of 128×128: 1 weight with scales, 1 as they are",
    )
    by_shape = "fp8, blocks of 128: 1 weight with scales, 1 as they are"
    assert said(folder) == by_shape
    config = folder / "config.json"
    for document, text in (
        ({"quantization_config": BLOCKS}, in_128),
        ({"text_config": {"quantization_config": BLOCKS}}, in_128),
        ({"quantization_config": 3, "text_config": 4}, by_shape),
        ([], by_shape),
    ):
        config.write_text(json.dumps(document))
        assert said(folder) == said(folder / "model.safetensors") == text
    for damage in (b"{", b"[" * 100_000, b"\xff\xfe", b" " * (MAX_CONFIG_BYTES + 1)):
        config.write_bytes(damage)
        assert said(folder) == by_shape
    config.unlink()
    config.mkdir()
    assert said(folder) == by_shape
    (folder / "hf_quant_config.json").write_text(json.dumps({"quantization": BLOCKS}))
    assert said(folder) == in_128


def test_codes_that_lack_a_scale_are_named(tmp_path: Path) -> None:
    folder = model(tmp_path / "a", has_scale=False)
    assert not any("quantised" in text for text in reshard.inspect(folder).warnings)
    (folder / "config.json").write_text(json.dumps({"quantization_config": BLOCKS}))
    text = (
        "1 tensor holds codes ('a.weight'), and the config calls the weights quantised, but the checkpoint has no scale for it; look for files "
        "that are missing"
    )
    info = reshard.inspect(folder)
    assert text in info.warnings
    assert info.quantized == ""
    assert "quantized" not in info.to_dict()
    assert text in reshard.plan(folder, to="orbax").warnings
