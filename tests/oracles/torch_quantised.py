"""A model in fp8 as DeepSeek's family has it, written by safetensors.torch, and its weights as engines compute them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch_tensors import described

BLOCK = 128
LARGEST = torch.finfo(torch.float8_e4m3fn).max
SHAPES = {
    "model.layers.0.mlp.up_proj.weight": (256, 384),
    "model.layers.0.mlp.down_proj.weight": (384, 256),
    "model.layers.0.self_attn.kv_a_proj.weight": (576, 128),
}


def save_quantised(folder: str) -> None:
    """Two files with an index; a weight and its scales may lie in different ones."""
    torch.manual_seed(3)
    files: list[dict[str, torch.Tensor]] = [{"model.norm.weight": torch.ones(384).bfloat16(), "model.inv_freq": torch.arange(8.0)}, {}]  # fmt: skip
    for name, shape in SHAPES.items():
        weight = torch.randn(shape) * 0.02
        scales = [[_part(weight, row, column).abs().max() / LARGEST for column in range(0, shape[1], BLOCK)] for row in range(0, shape[0], BLOCK)]  # fmt: skip
        scale = torch.tensor(scales, dtype=torch.float32)
        files[0][name] = (weight / _each(scale, shape)).to(torch.float8_e4m3fn)
        files[1][f"{name}_scale_inv"] = scale
    names = [f"model-0000{number}-of-00002.safetensors" for number in (1, 2)]
    for tensors, file in zip(files, names, strict=True):
        save_file(tensors, Path(folder, file), metadata={"format": "pt"})
    weight_map = {name: file for tensors, file in zip(files, names, strict=True) for name in tensors}  # fmt: skip
    Path(folder, "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))  # fmt: skip
    said = {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [BLOCK, BLOCK], "activation_scheme": "dynamic"}  # fmt: skip
    config = {"model_type": "deepseek_v3", "torch_dtype": "bfloat16", "quantization_config": said}
    Path(folder, "config.json").write_text(json.dumps(config))


def dequantised(folder: str) -> Any:
    """Every weight in bfloat16: one multiplication in float32, one rounding."""
    tensors = _tensors(folder)
    found = {}
    for name, tensor in tensors.items():
        if tensor.dtype == torch.float8_e4m3fn:
            scale = _each(tensors[f"{name}_scale_inv"], tuple(tensor.shape))
            found[name] = described((tensor.float() * scale).bfloat16())
        elif not name.endswith("_scale_inv"):
            found[name] = described(tensor.bfloat16())
    return found


def _part(weight: torch.Tensor, row: int, column: int) -> torch.Tensor:
    return weight[row : row + BLOCK, column : column + BLOCK]


def _each(scale: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
    """The scale of each element."""
    wide = scale.repeat_interleave(BLOCK, 0).repeat_interleave(BLOCK, 1)
    return wide[: shape[0], : shape[1]]


def decompressed(folder: str) -> Any:
    """The weights in bfloat16 that the converters of compressed-tensors make of a folder."""
    from compressed_tensors.entrypoints.convert import (  # fmt: skip
        CompressedTensorsDequantizer,
        FP8BlockDequantizer,
    )

    tensors = _tensors(folder)
    method = json.loads(Path(folder, "config.json").read_text())["quantization_config"]["quant_method"]  # fmt: skip
    if method == "fp8":
        converter = FP8BlockDequantizer.from_pretrained(folder)
    else:
        converter = CompressedTensorsDequantizer(folder)
    return {name: described(tensor) for name, tensor in converter.process(tensors).items()}


def stored_tensors(folder: str) -> Any:
    """Every tensor of a folder, as it is stored."""
    return {name: described(tensor) for name, tensor in _tensors(folder).items()}


def _tensors(folder: str) -> dict[str, torch.Tensor]:
    found: dict[str, torch.Tensor] = {}
    for file in Path(folder).glob("*.safetensors"):
        found |= load_file(file)
    return found
