"""The checkpoint that is converted in parts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import reshard


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rng = np.random.default_rng(5)
    tree: dict[str, Any] = {
        f"layer_{n:02}": {"kernel": rng.standard_normal((64, 48)).astype(np.float32)}
        for n in range(20)
    }
    tree |= {f"big_{n:02}": rng.standard_normal((64, 512)).astype(np.float32) for n in range(40)}
    path = tmp_path_factory.mktemp("trained") / "1000"
    reshard.save(path, tree)
    return path
