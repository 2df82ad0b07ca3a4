"""A checkpoint with a fingerprint, for tests of records and of damage, and one of a training state, for tests of rules."""

from __future__ import annotations

import jax
import numpy as np
import pytest

import reshard
from tests.orbax_trees import put, save_pytree, save_standard
from tests.verification.training_state import STATE


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


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    path = tmp_path_factory.mktemp("trained") / "c"
    state = jax.tree.map(lambda x: put(x) if isinstance(x, np.ndarray) else x, STATE)
    return save_standard(path, state)
