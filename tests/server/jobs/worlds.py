"""Fixtures of worlds: two checkpoints for the whole session, and one World for each test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import reshard
from tests.server.jobs.world import World
from tests.server.postgres import Postgres


def saved(folder: Path, mebibytes: int) -> Path:
    """A checkpoint of tensors of 4 MiB, each of which is moved by a task of its own."""
    rng = np.random.default_rng(mebibytes)
    path = folder / f"of{mebibytes}"
    tree = {
        f"w{i:02}": rng.integers(0, 1 << 16, (1024, 1024), np.int32) for i in range(mebibytes // 4)
    }
    reshard.save(path, tree)
    return path


@pytest.fixture(scope="session")
def slow_source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved(tmp_path_factory.mktemp("source"), 12)


@pytest.fixture(scope="session")
def small_source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved(tmp_path_factory.mktemp("source"), 4)


@pytest.fixture
def world(tmp_path: Path, slow_source: Path) -> Iterator[World]:
    yield from _world(tmp_path, slow_source, "")


@pytest.fixture
def shared_world(tmp_path: Path, slow_source: Path, postgres: Postgres) -> Iterator[World]:
    """A world on PostgreSQL, which several servers share."""
    yield from _world(tmp_path, slow_source, postgres.new_database())


@pytest.fixture
def small_world(tmp_path: Path, small_source: Path) -> Iterator[World]:
    yield from _world(tmp_path, small_source, "")


def _world(folder: Path, source: Path, url: str) -> Iterator[World]:
    (folder / "data").mkdir()
    (folder / "data" / "source").symlink_to(source)
    made = World(folder, url)
    try:
        yield made
    finally:
        made.close()
