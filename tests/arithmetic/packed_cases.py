"""Small checkpoints of packed codes, and their weights by plain formulas over integers and float64."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
from safetensors.numpy import save_file

Array = np.ndarray
BF16, E4M3, F16, F32 = ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, np.float16, np.float32
E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])
AWQ_ORDER = [0, 2, 4, 6, 1, 3, 5, 7]
L = "model.layers.0.mlp.up_proj"


class Case(NamedTuple):
    """Tensors, the config about quantisation, and the weights in float64 or narrower; they are rounded once."""

    tensors: Mapping[str, Array]
    config: Mapping[str, Any]
    weights: Mapping[str, Array]


def ct(format_: str, **weights: Any) -> dict[str, Any]:
    """A config of compressed-tensors with one group."""
    group = {"targets": ["Linear"], "weights": {"type": "int", "symmetric": True, **weights}}
    return {
        "quant_method": "compressed-tensors",
        "format": format_,
        "config_groups": {"group_0": group},
    }


def packed_words(codes: Array, bits: int, axis: int) -> Array:
    """Codes in words along an axis, the first in the lowest bits, padded with zeros."""
    moved = np.moveaxis(codes.astype(np.uint32), axis, -1)
    count = 32 // bits
    padded = np.pad(moved, [*[(0, 0)] * (moved.ndim - 1), (0, -moved.shape[-1] % count)])
    each = padded.reshape(*moved.shape[:-1], -1, count) << (
        np.arange(count, dtype=np.uint32) * bits
    )
    return np.ascontiguousarray(
        np.moveaxis(np.bitwise_or.reduce(each, -1).view(np.int32), -1, axis)
    )


def packed_bytes(codes: Array, axis: int = -1) -> Array:
    """Two codes in a byte along an axis, the first in the low bits."""
    moved = np.moveaxis(codes.astype(np.uint8), axis, -1)
    return np.ascontiguousarray(np.moveaxis(moved[..., ::2] | moved[..., 1::2] << 4, -1, axis))


def integers(
    rng: Any,
    shape: tuple[int, ...],
    *,
    bits: int = 4,
    group: int = 0,
    scale: Any = BF16,
    zeros: bool = False,
) -> Case:
    """pack-quantized; a group of 0 is a row."""
    half, width = 1 << bits - 1, shape[-1]
    stored = rng.integers(0, 2 * half, shape)
    groups = width // group if group else 1
    scales = rng.normal(0, 0.02, (*shape[:-1], groups)).astype(scale)
    numbers = stored - half
    tensors = {f"{L}.weight_packed": packed_words(stored, bits, -1), f"{L}.weight_scale": scales,
               f"{L}.weight_shape": np.array(shape)}  # fmt: skip
    each = np.repeat(scales, width // groups, -1)
    if zeros:
        points = rng.integers(0, 2 * half, scales.shape)
        tensors[f"{L}.weight_zero_point"] = packed_words(points, bits, -2)
        numbers = numbers - (np.repeat(points, width // groups, -1) - half)
    product = (numbers * each.astype(np.float64)).astype(F32).astype(scale)
    strategy = "group" if group else "channel"
    config = ct(
        "pack-quantized",
        num_bits=bits,
        strategy=strategy,
        group_size=group or None,
        symmetric=not zeros,
    )
    return Case(tensors, config, {f"{L}.weight": product})


def kimi(rng: Any) -> Case:
    """The experts of Kimi-K2 in int4, beside attention in bfloat16."""
    case = integers(rng, (16, 64), group=32)
    renamed = {
        name.replace(L, "model.layers.1.mlp.experts.0.up_proj"): a
        for name, a in case.tensors.items()
    }
    kept = {"model.layers.1.self_attn.o_proj.weight": np.ones((4, 4), BF16)}
    config = {**case.config, "ignore": ["lm_head", "re:.*self_attn.*"]}
    return Case(
        {**renamed, **kept},
        config,
        {"model.layers.1.mlp.experts.0.up_proj.weight": case.weights[f"{L}.weight"], **kept},
    )


def exponents(rng: Any, shape: tuple[int, ...]) -> Array:
    return rng.integers(100, 140, shape).astype(np.uint8)


def mxfp4(rng: Any) -> Case:
    codes, scales = rng.integers(0, 16, (6, 96)), exponents(rng, (6, 3))
    weights = E2M1[codes] * np.exp2(np.repeat(scales, 32, -1) - 127.0)
    tensors = {f"{L}.weight_packed": packed_bytes(codes), f"{L}.weight_scale": scales}
    return Case(
        tensors,
        ct("mxfp4-pack-quantized", num_bits=4, type="float", strategy="group", group_size=32),
        {f"{L}.weight": weights},
    )


def mxfp8(rng: Any) -> Case:
    codes = rng.integers(0, 256, (6, 64)).astype(np.uint8)
    codes[codes & 127 == 127] = 0  # NaN has no one bit pattern
    scales = exponents(rng, (6, 2))
    weights = codes.view(E4M3).astype(np.float64) * np.exp2(np.repeat(scales, 32, -1) - 127.0)
    tensors = {f"{L}.weight": codes.view(E4M3), f"{L}.weight_scale": scales}
    said = ct(
        "mxfp8-quantized",
        num_bits=8,
        type="float",
        strategy="group",
        group_size=32,
        scale_dtype="torch.uint8",
    )
    return Case(tensors, said, {f"{L}.weight": weights})


def gpt_oss(rng: Any, names: tuple[str, ...] = ("gate_up_proj", "down_proj")) -> Case:
    """Experts whose codes are in rows of outputs; biases stay."""
    tensors, weights = {}, {}
    for number, name in enumerate(names):
        stem = f"model.layers.0.mlp.experts.{name}"
        codes, scales = (
            rng.integers(0, 16, (3, 10 + number, 64)),
            exponents(rng, (3, 10 + number, 2)),
        )
        tensors[f"{stem}_blocks"] = packed_bytes(codes).reshape(*scales.shape, 16)
        tensors[f"{stem}_scales"] = scales
        weights[stem] = (E2M1[codes] * np.exp2(np.repeat(scales, 32, -1) - 127.0)).swapaxes(1, 2)
        tensors[f"{stem}_bias"] = weights[f"{stem}_bias"] = np.arange(3.0).astype(BF16)
    return Case(
        tensors,
        {"quant_method": "mxfp4", "modules_to_not_convert": ["model.embed_tokens"]},
        weights,
    )


def nvfp4(rng: Any) -> Case:
    codes, scales = rng.integers(0, 16, (6, 64)), rng.uniform(1, 400, (6, 4)).astype(E4M3)
    whole = rng.uniform(100, 3000, 1).astype(F32)
    factor = (scales.astype(F32) / whole).astype(np.float64)
    tensors = {f"{L}.weight_packed": packed_bytes(codes), f"{L}.weight_scale": scales,
               f"{L}.weight_global_scale": whole, f"{L}.input_global_scale": whole}  # fmt: skip
    said = ct(
        "nvfp4-pack-quantized", num_bits=4, type="float", strategy="tensor_group", group_size=16
    )
    return Case(tensors, said, {f"{L}.weight": E2M1[codes] * np.repeat(factor, 16, -1)})


def modelopt(rng: Any, *, power: bool = False) -> Case:
    codes, scales = rng.integers(0, 16, (6, 64)), rng.uniform(1, 400, (6, 4)).astype(E4M3)
    whole = np.array(2.0**-11 if power else rng.uniform(1e-4, 1e-3), F32)
    factor = (scales.astype(F32) * whole).astype(np.float64)
    tensors = {
        f"{L}.weight": packed_bytes(codes),
        f"{L}.weight_scale": scales,
        f"{L}.weight_scale_2": whole,
        f"{L}.input_scale": whole,
    }
    return Case(
        tensors,
        {"quant_method": "modelopt", "quant_algo": "NVFP4"},
        {f"{L}.weight": E2M1[codes] * np.repeat(factor, 16, -1)},
    )


def llama4(rng: Any) -> Case:
    """The experts of Llama 4 in NVFP4: codes are packed along inputs, the dimension before the last."""
    stem = "language_model.model.layers.1.feed_forward.experts.gate_up_proj"
    codes, scales = rng.integers(0, 16, (3, 32, 10)), rng.uniform(1, 400, (3, 2, 10)).astype(E4M3)
    whole = np.array(rng.uniform(1e-4, 1e-3), F32)
    factor = (scales.astype(F32) * whole).astype(np.float64)
    tensors = {
        stem: packed_bytes(codes, 1),
        f"{stem}_weight_scale": scales,
        f"{stem}_weight_scale_2": whole,
        f"{stem}_input_scale": whole,
    }
    return Case(
        tensors,
        {"quant_method": "modelopt", "quant_algo": "NVFP4"},
        {stem: E2M1[codes] * np.repeat(factor, 16, 1)},
    )


def awq(rng: Any) -> Case:
    codes, zeros = rng.integers(0, 16, (64, 24)), rng.integers(0, 16, (4, 24))
    scales = rng.normal(0, 0.02, (4, 24)).astype(F16)

    def packed(numbers: Array) -> Array:
        return packed_words(
            numbers.reshape(len(numbers), -1, 8)[..., AWQ_ORDER].reshape(numbers.shape), 4, -1
        )

    weights = (codes - np.repeat(zeros, 16, 0)) * np.repeat(scales, 16, 0).astype(np.float64)
    tensors = {f"{L}.qweight": packed(codes), f"{L}.qzeros": packed(zeros), f"{L}.scales": scales}
    config = {
        "quant_method": "awq",
        "bits": 4,
        "group_size": 16,
        "zero_point": True,
        "version": "gemm",
    }
    return Case(tensors, config, {f"{L}.weight": weights.T.astype(F16)})


def gptq(rng: Any, *, bits: int = 4, version: int = 1, order: str = "") -> Case:
    """``order``: "" without g_idx, "groups" for one group after the other, "any"."""
    codes, zeros = rng.integers(0, 1 << bits, (64, 24)), rng.integers(0, 1 << bits, (4, 24))
    scales = rng.normal(0, 0.02, (4, 24)).astype(F16)
    index = np.arange(64, dtype=np.int32) // 16
    index = rng.permutation(index) if order == "any" else index
    weights = (codes - (zeros[index] + (version == 1))) * scales[index].astype(np.float64)
    tensors = {
        f"{L}.qweight": packed_words(codes, bits, 0),
        f"{L}.qzeros": packed_words(zeros, bits, 1),
        f"{L}.scales": scales,
    }
    tensors |= {f"{L}.g_idx": index} if order else {}
    config = {"quant_method": "gptq", "bits": bits, "group_size": 16, "desc_act": order == "any",
              "checkpoint_format": "gptq" if version == 1 else "gptq_v2"}  # fmt: skip
    return Case(tensors, config, {f"{L}.weight": weights.T.astype(F16)})


NF4 = np.linspace(-1, 1, 16).astype(F32) ** 3


def nf4(rng: Any, shape: tuple[int, ...] = (6, 48), *, nested: bool = False) -> Case:
    count, tensors = int(np.prod(shape)), {}
    codes, blocks = rng.integers(0, 16, count), -(-count // 64)
    said = {"quant_type": "nf4", "blocksize": 64, "dtype": "bfloat16", "shape": list(shape)}
    scales = rng.uniform(0.01, 0.1, blocks).astype(F32)
    if nested:
        stored, numbers, outer = (
            rng.integers(0, 256, blocks).astype(np.uint8),
            rng.normal(0, 1, 256).astype(F32),
            rng.uniform(0.01, 0.1, -(-blocks // 4)).astype(F32),
        )
        said |= {"nested_blocksize": 4, "nested_offset": 0.0371, "nested_dtype": "float32"}
        scales = (numbers[stored].astype(np.float64) * np.repeat(outer, 4)[:blocks]).astype(
            F32
        ) + F32(0.0371)
        tensors = {
            f"{L}.weight.absmax": stored,
            f"{L}.weight.nested_absmax": outer,
            f"{L}.weight.nested_quant_map": numbers,
        }
    weights = NF4[codes].astype(np.float64) * np.repeat(scales, 64)[:count]
    padded = np.append(codes, 0)[: count + count % 2].astype(np.uint8)
    tensors = {f"{L}.weight": (padded[::2] << 4 | padded[1::2])[:, None], f"{L}.weight.absmax": scales, f"{L}.weight.quant_map": NF4,
               f"{L}.weight.quant_state.bitsandbytes__nf4": np.frombuffer(json.dumps(said).encode(), np.uint8), **tensors}  # fmt: skip
    return Case(
        tensors,
        {"quant_method": "bitsandbytes", "load_in_4bit": True},
        {f"{L}.weight": weights.reshape(shape)},
    )


PACKED: dict[str, Callable[[Any], Case]] = {
    "int4 in groups": lambda rng: integers(rng, (6, 64), group=32),
    "int4 in groups, float16": lambda rng: integers(rng, (6, 64), group=16, scale=F16),
    "int4 in groups, float32": lambda rng: integers(rng, (6, 64), group=16, scale=F32),
    "int4 in groups with zero points": lambda rng: integers(rng, (11, 64), group=16, zeros=True),
    "int4 in groups of 24": lambda rng: integers(rng, (6, 72), group=24),
    "int4 in rows": lambda rng: integers(rng, (5, 29)),
    "int4 in rows with zero points": lambda rng: integers(rng, (11, 29), zeros=True),
    "int8 in groups": lambda rng: integers(rng, (6, 64), bits=8, group=32),
    "int8 in rows with zero points": lambda rng: integers(rng, (6, 30), bits=8, zeros=True),
    "Kimi-K2": kimi,
    "mxfp4": mxfp4,
    "mxfp8": mxfp8,
    "gpt-oss": gpt_oss,
    "nvfp4": nvfp4,
    "ModelOpt": modelopt,
    "ModelOpt, a power of two": lambda rng: modelopt(rng, power=True),
    "Llama 4": llama4,
}
LEGACY: dict[str, Callable[[Any], Case]] = {
    "AWQ": awq,
    "GPTQ": gptq,
    "GPTQ v2": lambda rng: gptq(rng, version=2, order="groups"),
    "GPTQ in 8 bits": lambda rng: gptq(rng, bits=8),
    "GPTQ in any order": lambda rng: gptq(rng, order="any"),
    "nf4": nf4,
    "nf4 of an odd width": lambda rng: nf4(rng, (7, 33)),
    "nf4, scales in codes": lambda rng: nf4(rng, (9, 64), nested=True),
}  # fmt: skip


def write(folder: Path, tensors: Mapping[str, Array], config: Mapping[str, Any]) -> Path:
    """The checkpoint as Hugging Face has it."""
    folder.mkdir(parents=True)
    save_file(dict(tensors), folder / "model.safetensors")
    (folder / "config.json").write_text(
        json.dumps({"model_type": "llama", "quantization_config": dict(config)})
    )
    return folder
