"""The weights of packed codes, as compressed-tensors, transformers and bitsandbytes compute them."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file


def packed_weights(folder: str, kinds: dict[str, str]) -> Any:
    """The weights of each checkpoint below a folder, by the kind of its codes."""
    return {name: _weights(Path(folder, name), kind) for name, kind in kinds.items()}


def _weights(folder: Path, kind: str) -> dict[str, Any]:
    # It takes seconds to load, and few tests need it.
    from compressed_tensors.compressors import BaseCompressor
    from compressed_tensors.entrypoints.convert import AutoAWQConverter, ModelOptNvfp4Converter
    from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme

    def scheme_of(weights: dict[str, Any]) -> Any:
        return QuantizationScheme(targets=["Linear"], weights=QuantizationArgs(**weights))

    tensors = load_file(folder / "model.safetensors")
    config = json.loads((folder / "config.json").read_text())["quantization_config"]
    if kind == "gpt-oss":
        from transformers.integrations.mxfp4 import convert_moe_packed_tensors

        stems = [name.removesuffix("_blocks") for name in tensors if name.endswith("_blocks")]
        return {s: _array(convert_moe_packed_tensors(tensors[f"{s}_blocks"], tensors[f"{s}_scales"])) for s in stems}  # fmt: skip
    if kind == "awq":
        converter = AutoAWQConverter.from_autoawq_config(config)
        tensors = converter.process(tensors)
        scheme, kind = (
            next(iter(converter._build_quant_config().config_groups.values())),
            "pack-quantized",
        )
    elif kind == "modelopt":
        tensors = ModelOptNvfp4Converter(targets=["re:.*proj$"]).process(tensors)
        kind = "nvfp4-pack-quantized"
        scheme = scheme_of(
            {"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16}
        )
    else:
        scheme = scheme_of(config["config_groups"]["group_0"]["weights"])
    stem = next(iter(tensors)).rpartition(".")[0]
    state = {name.removeprefix(f"{stem}."): tensor for name, tensor in tensors.items()}
    found = BaseCompressor.get_value_from_registry(kind).decompress(state, scheme)
    return {f"{stem}.weight": _array(found["weight"])}


def save_bitsandbytes(folder: str) -> Any:
    """Checkpoints of random weights in 4 bits, and the weights by the names of their folders."""
    from bitsandbytes import functional

    torch.manual_seed(5)
    answers = {}
    for kind, nested, shape, dtype in (
        ("nf4", False, (24, 64), torch.bfloat16),
        ("nf4", True, (300, 256), torch.bfloat16),
        ("nf4", False, (24, 64), torch.float32),
        ("nf4", True, (300, 256), torch.float32),
        ("fp4", False, (24, 64), torch.float32),
    ):
        weight = torch.randn(shape, dtype=dtype) * 0.02
        codes, state = functional.quantize_4bit(weight, compress_statistics=nested, quant_type=kind)
        parts = {
            f"layer.weight.{name}": tensor for name, tensor in state.as_dict(packed=True).items()
        }
        name = f"{kind} {nested} {dtype}"
        Path(folder, name).mkdir()
        save_file({"layer.weight": codes, **parts}, Path(folder, name, "model.safetensors"))
        config = {"quantization_config": {"quant_method": "bitsandbytes", "load_in_4bit": True}}
        Path(folder, name, "config.json").write_text(json.dumps(config))
        answers[name] = _array(functional.dequantize_4bit(codes, state))
    return answers


def _array(tensor: torch.Tensor) -> dict[str, Any]:
    """The bits of bfloat16 as uint16, and others as float32."""
    whole = tensor.detach().contiguous()
    whole = whole.view(torch.uint16) if whole.dtype == torch.bfloat16 else whole.float()
    data = base64.b64encode(whole.numpy().tobytes()).decode()
    return {
        "array": data,
        "dtype": str(whole.dtype).removeprefix("torch."),
        "shape": list(whole.shape),
    }
