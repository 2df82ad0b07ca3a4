"""Safetensors files byte by byte, so that any of them may be wrong; and the folders of Hugging Face."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from safetensors.numpy import save

TREE = {
    "model.embed.weight": np.arange(96, dtype="float32").reshape(12, 8),
    "model.layers.0.mlp.weight": np.arange(64).reshape(8, 8).astype(ml_dtypes.bfloat16),
    "model.norm/scale": np.arange(8, dtype="int16"),
    "flag": np.array(True),
    "none": np.zeros((0, 3), "float16"),
}


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


def sharded(folder: Path) -> Path:
    """Two files and an index, as ``save_pretrained`` writes them."""
    folder.mkdir()
    names = list(TREE)
    files = {
        "model-00001-of-00002.safetensors": names[:2],
        "model-00002-of-00002.safetensors": names[2:],
    }
    for file, held in files.items():
        file_of(folder, save({name: TREE[name] for name in held}, {"format": "pt"}), file)
    weight_map = {name: file for file, held in files.items() for name in held}
    index = {"metadata": {"total_size": 1}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    (folder / "config.json").write_text("{}")
    return folder


def snapshot_of(folder: Path, repository: Path) -> Path:
    """Moves the files of a folder into a repository of huggingface_hub's cache; its snapshot, which holds links."""
    (repository / "blobs").mkdir(parents=True)
    snapshot = repository / "snapshots" / "1f"
    snapshot.mkdir(parents=True)
    for number, file in enumerate(sorted(folder.iterdir())):
        file.rename(repository / "blobs" / str(number))
        (snapshot / file.name).symlink_to(f"../../blobs/{number}")
    return snapshot
