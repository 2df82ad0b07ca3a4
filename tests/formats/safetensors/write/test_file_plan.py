"""The order of tensors in a file is that of the safetensors library: large elements first, so that all are aligned."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

import reshard


def names_in(file: Path) -> list[str]:
    """The names of a file's tensors, in the order in which their bytes lie."""
    data = file.read_bytes()
    header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    header.pop("__metadata__", None)
    return sorted(header, key=lambda name: header[name]["data_offsets"])


def test_tensors_lie_by_the_size_of_their_elements_and_then_by_name(tmp_path: Path) -> None:
    tensors = {
        "a": np.arange(3, dtype=np.int8),
        "b": np.arange(3, dtype=np.float32),
        "c": np.arange(3, dtype=np.float32),
        "d": np.arange(3, dtype=np.int64),
    }
    save_file(tensors, tmp_path / "source.safetensors")
    reshard.convert(
        tmp_path / "source.safetensors",
        tmp_path / "target.safetensors",
        rename={"^b$": "z", "^d$": "y"},
    )
    assert names_in(tmp_path / "target.safetensors") == ["y", "c", "z", "a"]
    renamed = {"a": tensors["a"], "z": tensors["b"], "c": tensors["c"], "y": tensors["d"]}
    save_file(renamed, tmp_path / "by_the_library.safetensors")
    assert names_in(tmp_path / "by_the_library.safetensors") == ["y", "c", "z", "a"]
