"""Reading weights of Keras without reshard: h5py reads all of the file."""

from __future__ import annotations

from pathlib import Path

import h5py
import ml_dtypes
import numpy as np

RECORD = "slices.json"
"""What reshard records beside the tensors."""


def read_weights(path: Path) -> dict[str, np.ndarray]:
    """The arrays by their paths in the file."""
    found: dict[str, np.ndarray] = {}

    def add(name: str, held: h5py.Group | h5py.Dataset) -> None:
        if isinstance(held, h5py.Dataset) and name != RECORD:
            array, dtype = held[()], held.attrs.get("dtype")
            found[name] = np.asarray(array if dtype is None else viewed(array, dtype))

    with h5py.File(path) as file:
        file.visititems(add)
    return found


def viewed(array: np.ndarray, dtype: str | bytes) -> np.ndarray:
    """Opaque elements as what the attribute ``dtype`` says that they are."""
    name = dtype.decode() if isinstance(dtype, bytes) else dtype
    elements = np.frombuffer(np.asarray(array).tobytes(), getattr(ml_dtypes, name))
    return elements.reshape(np.shape(array))
