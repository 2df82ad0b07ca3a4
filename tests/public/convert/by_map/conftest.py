"""A training state, and the file of the map that makes weights to serve of it."""

from __future__ import annotations

from pathlib import Path

import pytest

import reshard
from tests.orbax_trees import nested
from tests.public.convert.by_map.trained import MAP, TREE


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("trained") / "step"
    reshard.save(path, nested(TREE))
    return path


@pytest.fixture
def map_file(tmp_path: Path) -> Path:
    path = tmp_path / "map.yaml"
    path.write_text(MAP)
    return path
