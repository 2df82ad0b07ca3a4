"""A naive reader and writer of deltas, made from the layout's description alone, as receivers have them.

Nothing of this project is imported: numpy, zstandard, xxhash, blake3, zlib and safetensors do the work.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path

import blake3
import numpy as np
import xxhash
import zstandard
from safetensors import safe_open
from safetensors.numpy import save_file

CHECKSUMS: dict[str, Callable[[bytes], str]] = {
    "xxh3-128": lambda data: xxhash.xxh3_128(data).hexdigest(),
    "blake3": lambda data: blake3.blake3(data).hexdigest(),
    "adler32": lambda data: f"{zlib.adler32(data):08x}",
}

State = Mapping[str, bytes]
"""The bytes of each tensor."""


def xor_payload(old: bytes, new: bytes) -> bytes:
    return bytes(np.frombuffer(old, np.uint8) ^ np.frombuffer(new, np.uint8))


def overwrite_payload(old: bytes, new: bytes) -> bytes:
    places = np.flatnonzero(np.frombuffer(old, np.uint8) != np.frombuffer(new, np.uint8))
    values = np.frombuffer(new, np.uint8)[places].tobytes()
    return struct.pack("<I", len(places)) + places.astype("<u4").tobytes() + values


PAYLOADS = {"xor": xor_payload, "overwrite": overwrite_payload}


def write_delta(
    folder: Path,
    version: int | str,
    old: State,
    new: State,
    encoding: str = "xor",
    checksum: str = "xxh3-128",
    files: int = 1,
    base: int | str | None = None,
) -> Path:
    """A version folder below ``folder``, with nothing but what the layout has; an id that is a text names the folder."""
    if base is None:
        assert isinstance(version, int)
        base = version - 1
    place = folder / (version if isinstance(version, str) else f"weight_v{version:06d}")
    place.mkdir(parents=True)
    changed = [name for name in new if old[name] != new[name]]
    weight_map = {}
    for number in range(files):
        name = f"model-{number:05d}-of-{files:05d}.safetensors"
        mine = changed[number::files]
        if not mine:
            continue
        frames = {
            tensor: zstandard.ZstdCompressor(level=1).compress(
                PAYLOADS[encoding](old[tensor], new[tensor])
            )
            for tensor in mine
        }
        digests = {tensor: CHECKSUMS[checksum](new[tensor]) for tensor in mine}
        arrays = {tensor: np.frombuffer(frame, np.uint8) for tensor, frame in frames.items()}
        save_file(arrays, place / name, metadata=digests)
        weight_map |= dict.fromkeys(mine, name)
    metadata = {
        "version": version if isinstance(version, str) else f"{version:06d}",
        "base_version": base if isinstance(base, str) else f"{base:06d}",
        "delta_encoding": encoding,
        "compression_format": "zstd",
        "checksum_format": checksum,
    }
    index = {"metadata": metadata, "weight_map": weight_map}
    (place / "model.safetensors.index.json").write_text(json.dumps(index))
    return place


def apply_delta(place: Path, old: State) -> dict[str, bytes]:
    """The state after a version folder; as a receiver does it, tensor by tensor, with its checksum."""
    index = json.loads((place / "model.safetensors.index.json").read_text())
    metadata, made = index["metadata"], dict(old)
    for name, file in index["weight_map"].items():
        with safe_open(place / file, "np") as opened:
            frame, digest = opened.get_tensor(name).tobytes(), opened.metadata()[name]
        payload = zstandard.ZstdDecompressor().decompress(frame)
        made[name] = _applied(metadata["delta_encoding"], payload, old[name])
        assert CHECKSUMS[metadata["checksum_format"]](made[name]) == digest, name
    return made


def _applied(encoding: str, payload: bytes, old: bytes) -> bytes:
    if encoding == "xor":
        assert len(payload) == len(old)
        return xor_payload(old, payload)
    (count,) = struct.unpack_from("<I", payload)
    places = np.frombuffer(payload, "<u4", count, 4)
    values = np.frombuffer(payload, np.uint8, count, 4 + 4 * count)
    made = np.frombuffer(old, np.uint8).copy()
    made[places] = values
    return made.tobytes()


def write_full(folder: Path, state: State, like: Mapping[str, np.ndarray]) -> Path:
    """A full version: one file, as Hugging Face writes it."""
    folder.mkdir(parents=True)
    arrays = {
        name: np.frombuffer(state[name], array.dtype).reshape(array.shape)
        for name, array in like.items()
    }
    save_file(arrays, folder / "model.safetensors")
    return folder


def stored(folder: Path) -> dict[str, bytes]:
    """The bytes of each tensor of a full version, from the files as they are."""
    found = {}
    for file in sorted(folder.glob("*.safetensors")):
        data = file.read_bytes()
        length = int.from_bytes(data[:8], "little")
        for name, entry in json.loads(data[8 : 8 + length]).items():
            if name != "__metadata__":
                begin, end = entry["data_offsets"]
                found[name] = data[8 + length + begin : 8 + length + end]
    return found


def bytes_of(arrays: Mapping[str, np.ndarray]) -> dict[str, bytes]:
    return {name: array.tobytes() for name, array in arrays.items()}


def changed(state: State, rate: float, seed: int) -> dict[str, bytes]:
    """The state after a step that changes about so many of its bytes, at least one of each tensor unless the rate is 0."""
    rng = np.random.default_rng(seed)
    made = {}
    for name, data in state.items():
        octets = np.frombuffer(data, np.uint8).copy()
        count = 0 if not rate else min(len(octets), max(1, round(rate * len(octets))))
        places = rng.choice(len(octets), count, replace=False) if count else []
        octets[places] ^= rng.integers(1, 256, count, dtype=np.uint8)
        made[name] = octets.tobytes()
    return made
