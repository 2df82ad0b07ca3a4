"""SHA-256 of each tensor's row-major bytes, for checkers without tree hashes."""

from __future__ import annotations

import hashlib

import msgspec

from reshard.engine.limits import Limits
from reshard.formats.checkpoint_path import CheckpointPath
from reshard.formats.record_names import SHA256_NAME
from reshard.formats.registry import open_reader
from reshard.geometry.grid import Box
from reshard.storage.location import Location
from reshard.streaming.tensor_stream import TensorStream


def write_sha256(chosen: CheckpointPath, place: Location, limits: Limits) -> Location:
    """Reads each tensor in order, and writes ``sha256.json`` into a folder: 64 hex digits by name."""
    reader = open_reader(chosen)
    found: dict[str, str] = {}
    for name, stored in reader.tensors.items():
        whole = Box.full(stored.spec.shape)
        stream = TensorStream(reader, stored, whole, stored.spec.dtype, limits.max_memory)
        digest = hashlib.sha256()
        for piece in stream:
            digest.update(piece)
        found[name] = digest.hexdigest()
    file = place / SHA256_NAME
    file.replace(msgspec.json.format(msgspec.json.encode(found, order="sorted"), indent=1) + b"\n")
    return file
