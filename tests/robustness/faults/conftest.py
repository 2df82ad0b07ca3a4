"""The sources, saved once; each test works on a copy."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from tests.orbax_trees import save_pytree
from tests.robustness.faults.cases import CASES, clear, save_sources


@pytest.fixture(scope="session")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("sources")
    save_sources(root)
    CASES[0].run(root)  # loads all code that is loaded when it is needed
    clear(root)
    return root


@pytest.fixture
def work(sources: Path, tmp_path: Path) -> Path:
    """A folder with a copy of every source, and nothing else in it."""
    return Path(shutil.copytree(sources, tmp_path / "work"))


@pytest.fixture(scope="session")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """12 MiB in eight tensors that do not compress: more than tasks that travel together."""
    values = np.random.default_rng(0).integers(0, 256, (8, 1536, 1024), np.uint8)
    tree = {f"w{number}": values[number] for number in range(8)}
    return save_pytree(tmp_path_factory.mktemp("large") / "src", tree, use_ocdbt=False)
