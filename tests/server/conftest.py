"""Fixtures of all tests of the server: PostgreSQL, an application in this process, checkpoints, worlds, browsers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa
from reshard_server.db.database import open_database
from reshard_server.settings import Settings

from tests.server.bucket_roots import bucket, impatient, root_url
from tests.server.checkpoint import run_of
from tests.server.forks import children
from tests.server.jobs.worlds import (
    shared_world,
    slow_source,
    small_source,
    small_world,
    world,
)
from tests.server.pages.signed_in import ann, signed_in
from tests.server.postgres import Postgres, start_postgres
from tests.server.records import put_records
from tests.server.served import serve, served

__all__ = [
    "ann",
    "bucket",
    "children",
    "impatient",
    "postgres",
    "root_url",
    "run_of",
    "serve",
    "served",
    "shared_world",
    "signed_in",
    "slow_source",
    "small_source",
    "small_world",
    "world",
]


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    started = start_postgres()
    yield started
    started.end()


@pytest.fixture(params=["sqlite", "postgres"])
def each_db(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[sa.Engine]:
    """An empty database: once SQLite, once PostgreSQL."""
    url = None
    if request.param == "sqlite":
        put_records(tmp_path)
    else:
        url = request.getfixturevalue("postgres").new_database()
    engine = open_database(Settings(state=tmp_path, database_url=url))
    yield engine
    engine.dispose()
