"""Weights at random, and what becomes of them in a step."""

from __future__ import annotations

from pathlib import Path

import jax.numpy as jnp
import numpy as np
from safetensors.numpy import save_file

from tests.delta_layout import (
    bytes_of,
    changed,
)

RNG = np.random.default_rng(13)
DTYPES = [
    "bfloat16",
    "float32",
    "float8_e4m3fn",
    "uint8",
    "int64",
    "float16",
    "bool",
    "float8_e5m2",
    "int32",
]
"""All bits at random, so that -0.0, NaNs with payloads and denormals are among them; int4 comes packed, in bytes or in words of 32 bits."""


def array(shape: tuple[int, ...], dtype: str) -> np.ndarray:
    size = np.dtype(jnp.dtype(dtype)).itemsize
    octets = RNG.integers(0, 2 if dtype == "bool" else 256, (*shape, size), dtype=np.uint8)
    return octets.view(jnp.dtype(dtype)).reshape(shape)


def save(folder: Path, arrays: dict[str, np.ndarray]) -> Path:
    """With the safetensors of Hugging Face."""
    folder.mkdir(parents=True)
    save_file(arrays, folder / "model.safetensors")
    return folder


def stepped(arrays: dict[str, np.ndarray], rate: float, seed: int) -> dict[str, np.ndarray]:
    made = changed(bytes_of({n: a for n, a in arrays.items() if a.dtype != bool}), rate, seed)
    return {
        name: np.frombuffer(made[name], a.dtype).reshape(a.shape) if name in made else a
        for name, a in arrays.items()
    }
