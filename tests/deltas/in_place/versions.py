"""Versions of weights of many kinds of tensors, that deltas lead from one to the next."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from tests.delta_layout import bytes_of, changed

RNG = np.random.default_rng(7)
LIKE = {
    "a": RNG.integers(0, 256, 300_000, dtype=np.uint8),
    "b": RNG.integers(0, 256, (70, 1000), dtype=np.uint8),
    "c": np.arange(9, dtype="f4"),
    "half": RNG.normal(size=(90, 100)).astype("f2"),
    "none": np.zeros((0, 3), "f4"),
    "one": np.float32(2.0).reshape(()),
}
INDEX = "model.safetensors.index.json"
HIDDEN = ".reshard-in-place"


def step(state: Mapping[str, bytes], rate: float, seed: int) -> dict[str, bytes]:
    """As ``changed``, also of a tensor without bytes."""
    made = changed({name: data for name, data in state.items() if data}, rate, seed)
    return {name: made.get(name, b"") for name in state}


V0 = bytes_of(LIKE)
V1 = step(V0, 0.01, 1)
V2 = {**step(V1, 0.7, 2), "c": V1["c"]}


def write_shards(folder: Path, state: Mapping[str, bytes]) -> Path:
    """A full version in two files with an index that says more than it must."""
    folder.mkdir(parents=True)
    arrays = {n: np.frombuffer(state[n], a.dtype).reshape(a.shape) for n, a in LIKE.items()}
    names = {n: f"model-0000{1 + (n in 'ab')}-of-00002.safetensors" for n in LIKE}
    for file in set(names.values()):
        held = {n: array for n, array in arrays.items() if names[n] == file}
        save_file(held, folder / file, metadata={"format": "pt"})
    document = {"metadata": {"total_size": 5, "version": "000000"}, "weight_map": names, "more": 1}
    (folder / INDEX).write_text(json.dumps(document))
    (folder / "config.json").write_text("{}")
    return folder
