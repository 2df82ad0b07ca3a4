"""A bench on SQLite, and one on PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.server.schedules.bench import Bench


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path / "bench")
    yield made
    made.close()


@pytest.fixture(params=["sqlite", "postgres"])
def any_bench(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Bench]:
    """Once on each database."""
    url = ""
    if request.param == "postgres":
        url = request.getfixturevalue("postgres").new_database()
    made = Bench(tmp_path / "bench", url)
    yield made
    made.close()


@pytest.fixture
def run(bench: Bench) -> Path:
    folder = bench.data / "run"
    folder.mkdir()
    return folder
