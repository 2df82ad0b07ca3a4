"""Safetensors files byte by byte, so that any of them may be wrong."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save


def entry(dtype: Any, shape: list[Any], begin: int, end: int) -> dict[str, Any]:
    """A tensor in a header."""
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def packed(header: Mapping[str, Any] | bytes, data: bytes, align: int = 8) -> bytes:
    """A whole file; ``header`` may be any text."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    text += b" " * (-len(text) % align)
    return len(text).to_bytes(8, "little") + text + data


def file_of(folder: Path, data: bytes, name: str = "one.safetensors") -> str:
    """The path of a file with these bytes."""
    path = folder / name
    path.write_bytes(data)
    return str(path)


def dcp_file(folder: Path, number: int, pieces: dict[str, tuple[np.ndarray, list[int]]]) -> str:
    """As torch's HuggingFaceStorageWriter names and marks them."""
    info = {name: {"saved_offsets": offsets} for name, (_, offsets) in pieces.items()}
    metadata = {"format": "pt", "DCP_VERSION": "1.0", "DCP_SHARDING_INFO": json.dumps(info)}
    arrays = {name: np.ascontiguousarray(array) for name, (array, _) in pieces.items()}
    name = f"shard-{number:05}-model-00001-of-00001.safetensors"
    return file_of(folder, save(arrays, metadata), name)
