"""The checkpoints that the recorded conversions read: small, from fixed random numbers, in every form that is read."""

from __future__ import annotations

import shutil
import tarfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

import reshard
from tests import orbax_trees
from tests.arithmetic.quantised import save_model
from tests.old_orbax import ARCHIVE
from tests.orbax_trees import mesh, put, save_pytree

ROWS = {"mesh": {"axes": ["x"], "shape": [4]}, "rules": [{"match": "rows|both", "axes": ["x"]}]}
FP8 = {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 128]}
COLUMNS = {"mesh": {"axes": ["x"], "shape": [4]}, "rules": [{"match": "rows", "axes": [None, "x"]}]}


def weights(steps: int = 0) -> dict[str, Any]:
    """Tensors whose shapes lead to every strategy; some elements of two of them change in each step."""
    rng = np.random.default_rng(0)
    line = mesh((8,), ("x",))
    rows = rng.normal(size=(512, 1024)).astype(np.float32)
    rows[::97, 5] += steps
    return {
        "rows": put(rows, "x", None, on=line),
        "cols": put(rng.normal(size=(1024, 512)).astype(np.float32), None, "x", on=line),
        "both": put(rng.normal(size=(512, 512)).astype(np.float32), "data", "model"),
        "small": np.arange(100, dtype=np.int32) + np.int32(steps),
    }


def _converted(path: Path, name: str, **options: Any) -> None:
    reshard.convert(path.parent / "raw", path.parent / name, workers=2, **options)


def _by_orbax(path: Path, steps: int = 0, **options: Any) -> None:
    save_pytree(path, weights(steps), **options)


def _state(path: Path, save: Callable[..., Path]) -> None:
    save(path, orbax_trees.small_tree())


def _dtypes(path: Path) -> None:
    save_pytree(path, orbax_trees.dtype_tree(), use_ocdbt=False)


def _saved(path: Path) -> None:
    reshard.save(path, weights())


def _incomplete(path: Path) -> None:
    """A chunk is not stored."""
    shutil.copytree(path.parent / "raw", path)
    (path / "rows" / "3.0").unlink()


def _flipped(path: Path, of: str) -> None:
    """A bit of a chunk is flipped."""
    shutil.copytree(path.parent / of, path)
    names = (p for p in (path / "rows").rglob("*") if p.is_file())
    chunk = min(p for p in names if not p.name.startswith((".", "zarr.json")))
    data = bytearray(chunk.read_bytes())
    data[100] ^= 1
    chunk.write_bytes(data)


def _identified(path: Path) -> None:
    shutil.copytree(path.parent / "raw", path)
    reshard.identify(path, write=True, workers=2)


def _delta(path: Path, old: str, new: str) -> None:
    reshard.delta(path.parent / old, path.parent / new, path, workers=2)


def _beside_weights(path: Path) -> None:
    """Safetensors with the files that Hugging Face keeps beside them."""
    _converted(path, path.name, to="safetensors", file_bytes="2MiB")
    (path / "config.json").write_text('{"model_type": "small"}')
    (path / "tokenizer").mkdir()
    (path / "tokenizer" / "words.txt").write_text("a\nb\n")


def _codes(path: Path) -> None:
    """fp8 with the scales of blocks, in Hugging Face's form, and their scales in another file."""
    rng = np.random.default_rng(1)
    codes = {
        f"{name}.weight": rng.normal(size=shape).astype(ml_dtypes.float8_e4m3fn)
        for name, shape in {"rows": (512, 1024), "cols": (1000, 512)}.items()
    }
    scales = {
        f"{name}_scale_inv": rng.random([-(-n // 128) for n in array.shape], np.float32)
        for name, array in codes.items()
    }
    save_model(path, [{**codes, "small": np.arange(100, dtype=np.int32)}, scales], FP8)


def _old(path: Path) -> None:
    """Checkpoints of old versions of Orbax and Flax, some in msgpack files."""
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(path, filter="data")


SOURCES: dict[str, Callable[[Path], Any]] = {
    "raw": partial(_by_orbax, use_ocdbt=False, use_compression=False),
    "raw3": partial(_by_orbax, use_ocdbt=False, use_compression=False, use_zarr3=True),
    "zarr2": partial(_by_orbax, use_ocdbt=False),
    "zarr3": partial(_by_orbax, use_ocdbt=False, use_zarr3=True),
    "ocdbt2": _by_orbax,
    "ocdbt3": partial(_by_orbax, use_zarr3=True),
    "chunks": partial(_by_orbax, use_ocdbt=False, chunk_byte_size=8192),
    "saved": _saved,
    "gzip": partial(_converted, name="gzip", compression="gzip:1"),
    "blosc": partial(_converted, name="blosc", compression="blosc"),
    "zstd": partial(_converted, name="zstd", compression="zstd", chunk_bytes=65536),
    "one.safetensors": partial(_converted, name="one.safetensors"),
    "hf": _beside_weights,
    "ranks": partial(_converted, name="ranks", to="safetensors", files="ranks", layout=ROWS),
    "dcp": partial(_converted, name="dcp", to="safetensors", files="dcp", layout=COLUMNS),
    "state": partial(_state, save=orbax_trees.save_standard),
    "state1": partial(_state, save=orbax_trees.save_v1),
    "run": partial(_state, save=orbax_trees.save_manager_items),
    "unmerged": partial(_state, save=orbax_trees.save_unmerged),
    "dtypes": _dtypes,
    "incomplete": _incomplete,
    "damaged": partial(_flipped, of="saved"),
    "flipped": partial(_flipped, of="raw"),
    "broken": partial(_flipped, of="zstd"),
    "halves": partial(_converted, name="halves", compression="zstd", cast=[("float", "bfloat16")]),
    "fewer": partial(_converted, name="fewer", drop=["small"]),
    "identified": _identified,
    "base": partial(_converted, name="base", to="safetensors"),
    "later": partial(_by_orbax, steps=1, use_ocdbt=False),
    "latest": partial(_by_orbax, steps=2),
    "weight_v000001": partial(_delta, old="base", new="later"),
    "weight_v000002": partial(_delta, old="later", new="latest"),
    "codes": _codes,
    "old": _old,
}
"""By the name of the folder or file, in the order in which they are made; later ones copy earlier ones."""

NEEDS = {
    "gzip": ("raw",), "blosc": ("raw",), "zstd": ("raw",), "one.safetensors": ("raw",), "hf": ("raw",),
    "ranks": ("raw",), "dcp": ("raw",), "incomplete": ("raw",), "damaged": ("saved",),
    "flipped": ("raw",), "broken": ("zstd",), "halves": ("raw",), "fewer": ("raw",), "identified": ("raw",), "base": ("raw",),
    "weight_v000001": ("base", "later"), "weight_v000002": ("later", "latest"),
}  # fmt: skip
"""Which others a source is made from."""


def make_source(folder: Path, name: str) -> Path:
    """The path of a source in ``folder``, which is made when it is first asked for."""
    path = folder / name
    if not path.exists():
        for needed in NEEDS.get(name, ()):
            make_source(folder, needed)
        SOURCES[name](path)
    return path
