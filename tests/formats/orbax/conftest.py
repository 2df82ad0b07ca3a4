"""Two small checkpoints of stock Orbax to be damaged."""

from __future__ import annotations

import pytest

from tests.formats.orbax.refused import TREE
from tests.orbax_trees import save_pytree


@pytest.fixture
def plain(tmp_path):
    return save_pytree(tmp_path / "c", TREE, use_ocdbt=False)


@pytest.fixture
def ocdbt(tmp_path):
    return save_pytree(tmp_path / "c", TREE, use_compression=False)
