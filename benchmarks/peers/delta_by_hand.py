"""What a program of its own does with deltas of safetensors: numpy, zstandard and xxhash, as many threads as there are cores.

``delta_by_hand make FOLDER MIB PERCENT``, ``delta OLD NEW TARGET``, ``xor OLD NEW TARGET``, ``apply BASE DELTA TARGET`` and
``fold BASE DELTA TARGET``.

``delta`` and ``apply`` hold what they read whole. ``xor`` and ``fold`` are the least that any program must do: read both versions and compress
their XOR; read base and delta, XOR, sum up and write, tensor by tensor.
"""

from __future__ import annotations

import json
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np
import xxhash
import zstandard
from safetensors import safe_open
from safetensors.numpy import save_file

if TYPE_CHECKING:
    import numpy.typing as npt

    Array = npt.NDArray[Any]

FILE = "model.safetensors"
ROWS, COLUMNS = 2048, 4096


def make(folder: Path, mib: int, percent: float) -> None:
    """A version in ``old``, and one in ``new`` in which so many of a hundred elements differ by a bit or two."""
    rng = np.random.default_rng(0)
    tensors: dict[str, Array] = {}
    for number in range(max(1, mib * 2**20 // (ROWS * COLUMNS * 2))):
        values = rng.standard_normal((ROWS, COLUMNS), dtype=np.float32)
        tensors[f"layers.{number}.weight"] = values.astype(ml_dtypes.bfloat16)
    for name in ("old", "new"):
        (folder / name).mkdir()
        save_file(tensors, folder / name / FILE, metadata={"format": "pt"})
        for tensor in tensors.values():
            bits = tensor.view(np.uint16)
            changed = rng.random(bits.shape, dtype=np.float32) < percent / 100
            bits[changed] ^= rng.integers(1, 4, int(changed.sum()), dtype=np.uint16)


def delta(old: Path, new: Path, target: Path) -> None:
    """The XOR of each tensor that changed, compressed, and the checksum of the new one."""
    before, after = _read(old), _read(new)

    def one(name: str) -> tuple[str, bytes, str]:
        difference = before[name] ^ after[name]
        if not difference.any():
            return name, b"", ""
        payload = zstandard.ZstdCompressor(level=1).compress(difference)
        return name, payload, xxhash.xxh3_128_hexdigest(after[name])

    made = [found for found in _in_threads(one, after) if found[1]]
    target.mkdir()
    save_file({n: np.frombuffer(p, "u1") for n, p, _ in made}, target / FILE)
    (target / "index.json").write_text(json.dumps({name: digest for name, _, digest in made}))


def xor(old: Path, new: Path, target: Path) -> None:
    """Both are read, and their XOR is compressed; nothing is compared or summed up."""
    before, after = _read(old), _read(new)

    def one(name: str) -> bytes:
        return zstandard.ZstdCompressor(level=1).compress(before[name] ^ after[name])

    target.mkdir()
    (target / FILE).write_bytes(b"".join(_in_threads(one, after)))


def apply(base: Path, version: Path, target: Path) -> None:
    """The base with the payloads folded in, each tensor compared with its checksum."""
    tensors = _read(base)
    digests = json.loads((version / "index.json").read_text())
    payloads = _read(version)

    def one(name: str) -> None:
        whole = zstandard.ZstdDecompressor().decompress(payloads[name])
        tensors[name] = tensors[name] ^ np.frombuffer(whole, "u1")
        if xxhash.xxh3_128_hexdigest(tensors[name]) != digests[name]:
            raise SystemExit(f"{name} has another checksum")

    for _ in _in_threads(one, payloads):
        pass
    target.mkdir()
    save_file(tensors, target / FILE)


def fold(base: Path, version: Path, target: Path) -> None:
    """The base with the payloads folded in: each tensor is read, changed, summed up and written to its place; nothing is compared."""
    payloads = _read(version)
    source = base / FILE
    with source.open("rb") as file:
        start = 8 + int.from_bytes(file.read(8), "little")
        entries = json.loads(file.read(start - 8))
        file.seek(0)
        header = file.read(start)
    target.mkdir()
    with source.open("rb") as old, (target / FILE).open("wb") as new:
        new.write(header)
        new.flush()

        def one(name: str) -> str:
            begin, end = entries[name]["data_offsets"]
            data = np.empty(end - begin, np.uint8)
            os.preadv(old.fileno(), [data], start + begin)
            if name in payloads:
                whole = zstandard.ZstdDecompressor().decompress(payloads[name])
                np.bitwise_xor(data, np.frombuffer(whole, "u1"), out=data)
            os.pwrite(new.fileno(), data, start + begin)
            return xxhash.xxh3_128_hexdigest(data)

        _in_threads(one, entries.keys() - {"__metadata__"})


def _read(folder: Path) -> dict[str, Array]:
    with safe_open(folder / FILE, "np") as file:
        return {n: file.get_tensor(n).reshape(-1).view(np.uint8) for n in file.keys()}  # noqa: SIM118  an open file is no mapping


def _in_threads(work: Any, names: Any) -> list[Any]:
    with ThreadPoolExecutor(os.cpu_count()) as threads:
        return list(threads.map(work, list(names)))


def main() -> None:
    """Do what the first word says."""
    what, *words = sys.argv[1:]
    if what == "make":
        make(Path(words[0]), int(words[1]), float(words[2]))
        return
    {"delta": delta, "xor": xor, "apply": apply, "fold": fold}[what](*map(Path, words))


if __name__ == "__main__":
    main()
