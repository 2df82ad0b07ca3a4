"""A source of each kind, made once by stock Orbax and copied for each test."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from tests.orbax_trees import mesh, put, save_pytree, save_v1


def make_tree() -> dict[str, Any]:
    rng = np.random.default_rng(0)
    return {
        "params": {
            "kernel": put(rng.normal(size=(16, 8)).astype(np.float32), "data", "model", on=mesh()),
            "bias": np.arange(8, dtype=np.float32),
        },
        "table": rng.normal(size=(64, 64)).astype(np.float32),
        "count": np.arange(6, dtype=np.int32),
        "wave": np.arange(4, dtype=np.complex64),
        "key": jax.random.key(7),
        "name": "a string",
    }


@pytest.fixture(scope="session")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Path]:
    """One tree as stock Orbax saves it in several ways; never changed, only copied."""
    root, tree = tmp_path_factory.mktemp("saved"), make_tree()
    return {
        "plain": save_pytree(root / "plain", tree, use_ocdbt=False, use_compression=False),
        "zstd": save_pytree(root / "zstd", tree, use_ocdbt=False, use_zarr3=True),
        "ocdbt": save_pytree(root / "ocdbt", tree),
        "v1": save_v1(root / "v1", tree),
    }


@pytest.fixture
def source(saved: Mapping[str, Path], tmp_path: Path) -> Path:
    return Path(shutil.copytree(saved["plain"], tmp_path / "src"))
