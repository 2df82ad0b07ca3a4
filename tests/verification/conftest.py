"""A checkpoint with a fingerprint, for tests of records and of damage."""

from __future__ import annotations

import numpy as np
import pytest

import reshard
from tests.orbax_trees import save_pytree


@pytest.fixture
def plain(tmp_path):
    rng = np.random.default_rng(0)
    tree = {
        "a": {"w": rng.normal(size=(64, 64)).astype(np.float32)},
        "b": np.arange(99, dtype=np.int32),
    }
    path = save_pytree(tmp_path / "c", tree, use_ocdbt=False, use_compression=False)
    reshard.fingerprint(path)
    return path
