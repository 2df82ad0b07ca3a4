"""Damage to the header of a safetensors file, with the right length and mostly the right digest."""

from __future__ import annotations

import json
import random
from pathlib import Path

from reshard.formats.safetensors.header import HEADER_DIGEST, NO_DIGEST, with_digest
from tests.robustness.hostile.damage_json import damage_json, sealed


def damage_header(rng: random.Random, path: Path) -> str:
    """Changes the header, or a text in its metadata that is JSON itself; the tensors stay."""
    data = path.read_bytes()
    end = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:end])
    metadata = header["__metadata__"]
    key = rng.choice([*(k for k, text in metadata.items() if text.startswith("{")), ""])
    if key:
        metadata[key] = sealed(json.dumps(damage_json(rng, json.loads(metadata[key]))).encode()).decode()  # fmt: skip
    else:
        header = damage_json(rng, header)
    if rng.random() < 0.9:
        metadata[HEADER_DIGEST] = NO_DIGEST
    text = json.dumps(header, separators=(",", ":")).encode()
    start = len(text).to_bytes(8, "little") + text
    is_marked = f'"{HEADER_DIGEST}":"{NO_DIGEST}"'.encode() in start
    path.write_bytes((with_digest(start) if is_marked else start) + data[end:])
    return f"header of {path.name}"
