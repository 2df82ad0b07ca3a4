"""A naive reader and writer of SkyRL's deltas, made from the layout's description alone.

Nothing of this project is imported: numpy, zstandard, xxhash and safetensors do the work.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import xxhash
import zstandard
from safetensors import safe_open
from safetensors.numpy import save_file

State = Mapping[str, bytes]
"""The bytes of each tensor."""

Kinds = Mapping[str, tuple[str, list[int]]]
"""The dtype of each tensor, as torch names it, and its shape."""


def write_skyrl(
    folder: Path,
    version: int,
    old: State,
    new: State,
    kinds: Kinds,
    *,
    files: int = 1,
    prefix: str = "",
) -> Path:
    """The folder of a version below ``folder``; ``prefix`` comes before each dtype."""
    place = folder / f"delta-{version:08d}"
    place.mkdir(parents=True)
    changed = [name for name in new if old[name] != new[name]]
    tensors, payload_files = [], []
    for number in range(files):
        mine = changed[number::files]
        if not mine:
            continue
        file = f"delta-rank00000-file{number:06d}.safetensors"
        frames = {
            name: zstandard.ZstdCompressor(level=1).compress(_xor(old[name], new[name]))
            for name in mine
        }
        save_file(
            {name: np.frombuffer(frame, np.uint8) for name, frame in frames.items()}, place / file
        )
        payload_files.append(file)
        for name in mine:
            dtype, shape = kinds[name]
            tensors.append(
                {
                    "name": name,
                    "dtype": prefix + dtype,
                    "shape": shape,
                    "uncompressed_num_bytes": len(new[name]),
                    "compressed_num_bytes": len(frames[name]),
                    "payload_file": file,
                    "payload_key": name,
                    "checksum": xxhash.xxh3_128(new[name]).hexdigest(),
                    "checksum_algorithm": "xxh3-128",
                }
            )
    manifest: dict[str, Any] = {
        "version": version,
        "base_version": version - 1,
        "tensors": tensors,
        "total_uncompressed_num_bytes": sum(one["uncompressed_num_bytes"] for one in tensors),
        "total_compressed_num_bytes": sum(one["compressed_num_bytes"] for one in tensors),
        "payload_files": payload_files,
    }
    (place / "manifest.json").write_text(json.dumps(manifest))
    return place


def apply_skyrl(place: Path, old: State) -> dict[str, bytes]:
    """The state after a version, as a receiver makes it."""
    made = dict(old)
    for one in json.loads((place / "manifest.json").read_text())["tensors"]:
        with safe_open(place / one["payload_file"], "np") as opened:
            frame = opened.get_tensor(one["payload_key"]).tobytes()
        payload = zstandard.ZstdDecompressor().decompress(frame)
        assert len(payload) == one["uncompressed_num_bytes"]
        made[one["name"]] = _xor(old[one["name"]], payload)
        assert xxhash.xxh3_128(made[one["name"]]).hexdigest() == one["checksum"]
    return made


def _xor(a: bytes, b: bytes) -> bytes:
    return bytes(np.frombuffer(a, np.uint8) ^ np.frombuffer(b, np.uint8))
