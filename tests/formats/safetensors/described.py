"""What is said of an array here as the processes of torch say it (``tests/oracles/torch_tensors.py``)."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import orbax.checkpoint as ocp

from tests.oracles.oracle import Oracle


def described(array: Any) -> dict[str, Any]:
    """The dtype, the shape, and a digest of the row-major bytes."""
    found = np.asarray(array)
    digest = hashlib.sha256(found.tobytes()).hexdigest()
    return {"dtype": found.dtype.name, "shape": list(found.shape), "sha256": digest}


def stock_orbax(path: Path, wanted: Mapping[str, Any]) -> dict[str, Any]:
    """The tensors that stock Orbax restores where these are expected, as numpy arrays."""
    target = {
        name: np.zeros(tensor["shape"], np.dtype(getattr(ml_dtypes, tensor["dtype"], tensor["dtype"])))
        for name, tensor in wanted.items()
    }  # fmt: skip
    with ocp.StandardCheckpointer() as checkpointer:
        found = checkpointer.restore(path, target)
    return {name: described(array) for name, array in found.items()}


def by_torch(torch: Oracle, folder: Path) -> dict[str, Any]:
    """The tensors of a folder's safetensors files, each in one of them, as the loader for torch reads them."""
    files = torch.ask("stored", folder=str(folder)).values()
    found = {name: tensor for file in files for name, tensor in file.items()}
    assert len(found) == sum(map(len, files))
    return found
