"""Small real checkpoints to damage: by stock Orbax in all its forms, by old versions of it, and by this project."""

from __future__ import annotations

import shutil
from functools import partial
from pathlib import Path
from typing import Any

import h5py
import jax
import ml_dtypes
import numpy as np

import reshard
from tests.dcp_files import cut, write_dcp
from tests.old_orbax import unpack
from tests.orbax_trees import (
    mesh,
    put,
    save_half_merged,
    save_manager_items,
    save_pytree,
    save_unmerged,
    save_v1,
)

FORMS = {
    "ocdbt-zarr2": partial(save_pytree, use_ocdbt=True, use_zarr3=False),
    "ocdbt-zarr3": partial(save_pytree, use_ocdbt=True, use_zarr3=True),
    "plain-zarr2": partial(save_pytree, use_ocdbt=False, use_zarr3=False),
    "plain-zarr3": partial(save_pytree, use_ocdbt=False, use_zarr3=True),
    "raw-zarr2": partial(save_pytree, use_ocdbt=False, use_compression=False),
    "raw-zarr3": partial(save_pytree, use_ocdbt=False, use_compression=False, use_zarr3=True),
    "rich": partial(save_pytree, use_ocdbt=False, rich_types=True),
    "unmerged": save_unmerged,
    "half-merged": save_half_merged,
    "items": save_manager_items,
    "v1": save_v1,
}
"""Ways of saving, by name."""

OLD = {
    "old-msgpack": "o023/flaxargs",
    "old-placeholders": "o023/plain",
    "old-both": "agg_0.5.9/flaxargs",
    "old-items": "o041/run2/3",
}
"""Checkpoints of old versions, with their paths in ``tests/old_orbax.tgz``."""

DCP = "dcp"
"""A distributed checkpoint as torch writes it."""

WITHIN = {
    "tensorflow": "ckpt",
    "tensorflow-shards": "ckpt",
    "keras": "model.weights.h5",
    "keras-record": "model.weights.h5",
}
"""Checkpoints that a prefix or a file in the specimen's folder names."""

TENSORS = {"drop": ["key", "none", "empty", "name"]}
"""Safetensors files hold nothing else."""

OURS = {
    "ours": {"mesh": "data=2,model=2"},
    "ours-blosc": {"compression": "blosc"},
    "ours-gzip": {"compression": "gzip"},
    "ours-zstd": {"compression": "zstd:1"},
    "ours-ocdbt": {"ocdbt": True},
    "ours-shards": {"to": "safetensors", "files": "shards", "file_bytes": 4000, **TENSORS},
    "ours-ranks": {"to": "safetensors", "files": "ranks", "mesh": "data=2,model=2", **TENSORS},
}
"""Options of a conversion whose output is damaged in turn, by name."""


def make_specimens(root: Path) -> list[str]:
    """Saves every form below ``root``; their names."""
    for name, save in FORMS.items():
        found = save(root / name, _tree(strings=name.startswith(("plain", "raw"))))
        if found != root / name:  # a step below a manager's folder
            moved = root / f"{name}.step"
            found.rename(moved)
            for left in sorted((root / name).rglob("*"), reverse=True):
                left.rmdir() if left.is_dir() else left.unlink()
            (root / name).rmdir()
            moved.rename(root / name)
    unpacked = unpack(root.with_name(f"{root.name}-old"))
    for name, path in OLD.items():
        shutil.copytree(unpacked / path, root / name)
    for name, options in OURS.items():
        reshard.convert(root / "raw-zarr2", root / name, **options)
    write_dcp(root / DCP, _state(), files=2, paths=_paths())
    for name in WITHIN:
        (root / name).mkdir()
    _write_within(root)
    return [*FORMS, *OLD, *OURS, DCP, *WITHIN]


def _write_within(root: Path) -> None:
    places = {name: root / name / path for name, path in WITHIN.items()}
    texts = {**TENSORS, "drop": ["key", "none", "empty"]}
    source = root / "raw-zarr2"
    reshard.convert(
        source, places["tensorflow-shards"], to="tensorflow", mesh="data=2,model=2", **texts
    )
    reshard.convert(source, places["keras-record"], **TENSORS)
    reshard.convert(source, places["tensorflow"], to="tensorflow", **texts)
    (root / "tensorflow" / "ckpt.slices.json").unlink()
    with h5py.File(
        places["keras"], "w"
    ) as file:  # as Keras: without a record, and opaque elements have an attribute
        for name, array in _state_arrays().items():
            file[name] = array
            file[name.rpartition("/")[0]].attrs["name"] = name.split("/")[1]
        made = file.create_dataset("layers/half/vars/0", data=np.zeros((4, 2), "V2"))
        made.attrs["dtype"] = "bfloat16"


def _state_arrays() -> dict[str, np.ndarray[Any, Any]]:
    return {
        "layers/dense/vars/0": np.arange(24, dtype=np.float32).reshape(6, 4),
        "layers/dense/vars/1": np.arange(4, dtype=np.float32),
        "optimizer/vars/0": np.array(7, np.int64),
    }


def _state() -> dict[str, Any]:
    """What torch would save of a model and its optimizer, under its names."""
    rng = np.random.default_rng(1)
    kernel = rng.normal(size=(16, 8)).astype(np.float32)
    return {
        "model.kernel": cut(kernel, 3),
        "model.turned": np.asfortranarray(kernel.astype(ml_dtypes.bfloat16)),
        "model.big": np.arange(5000, dtype=np.uint16),
        "optim.groups.0.lr": 0.1,
        "optim.groups.0.params": [0, 1, (2, "a string", None)],
        "optim.groups.1": {},
    }


def _paths() -> dict[str, tuple[Any, ...]]:
    keys = {name: tuple(name.split(".")) for name in _state()}
    return {name: tuple(int(k) if k.isdigit() else k for k in path) for name, path in keys.items()}


def _tree(*, strings: bool) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    tree = {
        "params": {
            "kernel": put(rng.normal(size=(16, 8)).astype(np.float32), "data", "model", on=mesh()),
            "layers": [put(rng.normal(size=(8,)).astype(ml_dtypes.bfloat16), "model", on=mesh())],
        },
        "table": rng.integers(0, 9, (32, 16)).astype(np.int32),
        "big": np.arange(5000, dtype=np.uint16),
        "wave": np.arange(4, dtype=np.complex64),
        "key": jax.random.key(7),
        "count": 3,
        "none": None,
        "empty": {},
    }
    return tree | {"name": "a string"} if strings else tree
