"""Small quantised checkpoints, opened and converted with their weights dequantised, and the weights as numpy computes them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from msgspec.structs import replace
from safetensors.numpy import save_file

from reshard.arithmetic.dequantize import Dequantize
from reshard.checkpoint import OpenedCheckpoint
from reshard.conversion.check_target import check_target
from reshard.conversion.convert import convert_targets
from reshard.conversion.options import Target
from reshard.conversion.report import ConversionReport
from reshard.engine.limits import limits_of
from reshard.formats.registry import CheckpointPath

Arrays = Mapping[str, np.ndarray]
E4M3 = np.dtype(ml_dtypes.float8_e4m3fn)
BF16 = np.dtype(ml_dtypes.bfloat16)
RNG = np.random.default_rng(5)


def save_model(
    folder: Path, files: Sequence[Arrays], quantization: Mapping[str, Any] | None = None
) -> Path:
    """Safetensors files with an index, and a config if there is one."""
    folder.mkdir(parents=True)
    weight_map = {}
    for number, arrays in enumerate(files, 1):
        name = f"model-{number:05}-of-{len(files):05}.safetensors"
        save_file(dict(arrays), folder / name)
        weight_map |= dict.fromkeys(arrays, name)
    (folder / "model.safetensors.index.json").write_text(
        json.dumps({"metadata": {}, "weight_map": weight_map})
    )
    if quantization is not None:
        config = {"model_type": "llama", "quantization_config": quantization}
        (folder / "config.json").write_text(json.dumps(config))
    return folder


def dequantising(path: Path | CheckpointPath, dtype: str = "bfloat16") -> CheckpointPath:
    chosen = path if isinstance(path, CheckpointPath) else CheckpointPath.at(str(path))
    return replace(chosen, computed=(Dequantize.asked(dtype),))


def restored(path: Path, dtype: str = "bfloat16") -> dict[str, np.ndarray]:
    """Every tensor by its name."""
    found = flattened(OpenedCheckpoint(dequantising(path, dtype)).restore())
    return {name: np.asarray(array) for name, array in found}


def flattened(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """The leaves of nested dicts, by path."""
    for key, value in tree.items():
        if isinstance(value, Mapping):
            yield from flattened(value, f"{prefix}{key}/")
        else:
            yield f"{prefix}{key}", value


def convert(chosen: CheckpointPath, target: Path, **options: Any) -> ConversionReport:
    limits = limits_of(options.pop("max_memory", "64MiB"), 1, chosen.path, target)
    checked = check_target(Target(target, **options), limits)
    return convert_targets(chosen, [checked], None, None, None).reports[0]


def random_codes(shape: Sequence[int], dtype: Any = E4M3) -> np.ndarray:
    """Random codes, none of which is NaN."""
    dtype = np.dtype(dtype)
    codes = RNG.integers(0, 256, shape, np.uint8)
    found = codes.astype(dtype) if dtype.name in ("int4", "uint4") else codes.view(dtype)
    return np.where(np.isnan(found.astype(np.float32)), np.zeros((), dtype), found)


def random_scale(shape: Sequence[int], dtype: Any = np.float32) -> np.ndarray:
    return (RNG.random(shape) * 1e-2 + 1e-4).astype(dtype)


def spread(scale: np.ndarray, shape: Sequence[int], tile: Sequence[int]) -> np.ndarray:
    """The scale of each element: ``tile`` codes along each dimension share one, 0 for all."""
    for dim, size in enumerate(tile):
        scale = np.repeat(scale, size or shape[dim], dim)
    return scale[tuple(map(slice, shape))]


def weights(
    codes: np.ndarray, scale: np.ndarray, dtype: str = "bfloat16", zeros: np.ndarray | None = None
) -> np.ndarray:
    """Exact products, rounded to float32, to the dtype of the scale, and to that of the weights."""
    exponents = np.uint8, ml_dtypes.float8_e8m0fnu
    is_exponent = scale.dtype in exponents
    number = (
        2.0 ** (scale.view(np.uint8).astype(np.float64) - 127)
        if is_exponent
        else scale.astype(np.float64)
    )
    if is_exponent:
        number[scale.view(np.uint8) == 255] = np.nan
    kept = np.dtype(np.float32 if is_exponent else scale.dtype)
    with np.errstate(all="ignore"):
        values = codes.astype(np.float64)
        if zeros is not None:
            values = (values - zeros.astype(np.float64)).astype(np.float32).astype(kept)
        product = (values.astype(np.float64) * number).astype(np.float32).astype(kept)
        return product.astype(np.float32).astype(getattr(ml_dtypes, dtype, dtype))


def assert_same(found: np.ndarray, wanted: np.ndarray) -> None:
    """Equal to the bit; any NaN is one."""
    assert (found.dtype, found.shape) == (wanted.dtype, wanted.shape)
    nan = np.isnan(wanted.astype(np.float32))
    assert np.array_equal(np.isnan(found.astype(np.float32)), nan)
    bits = np.dtype(f"u{found.itemsize}")
    assert np.array_equal(found.view(bits)[~nan], wanted.view(bits)[~nan])
