"""Checkpoints that stock Orbax wrote, made once."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.orbax_trees import save_pytree, small_tree


@pytest.fixture(scope="session")
def raw(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """``small_tree`` uncompressed, in plain files."""
    root = tmp_path_factory.mktemp("raw")
    yield save_pytree(root / "checkpoint", small_tree(), use_ocdbt=False, use_compression=False)
    shutil.rmtree(root)
