"""A training run below the root ``data`` of a served application."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import reshard

TREE = {
    "params": {
        "kernel": np.arange(64 * 32, dtype=np.float32).reshape(64, 32),
        "bias": np.arange(6, dtype=np.float32),
    },
    "step": np.int32(7),
}


@pytest.fixture
def run_of(tmp_path: Path) -> Path:
    """The folder ``data/run`` with the checkpoints 1 and 2."""
    for step in (1, 2):
        reshard.save(tmp_path / "data" / "run" / str(step), TREE)
    return tmp_path / "data" / "run"
