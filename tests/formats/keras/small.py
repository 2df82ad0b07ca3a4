"""A small file of weights, and how a file is refused."""

from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np
import pytest

import reshard
from reshard.errors import FormatError

DATA = np.arange(24, dtype=np.float32).reshape(6, 4)


def put(folder: Path) -> Path:
    file = folder / "model.weights.h5"
    with h5py.File(file, "w") as made:
        made["layers/dense/vars/0"] = DATA
        made["layers/dense/vars/1"] = np.float64(2)
        made["layers/dense/vars"].attrs["name"] = "dense"
    return file


def refusal(file: Path, kind: type[FormatError] = FormatError) -> str:
    """The message, without the file."""
    with pytest.raises(kind) as caught:
        reshard.inspect(file)
    return str(caught.value).replace(str(file), "FILE")
