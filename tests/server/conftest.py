"""Fixtures of all tests of the server: PostgreSQL, an application in this process, checkpoints, worlds, browsers."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.server.bucket_roots import bucket, impatient, root_url
from tests.server.checkpoint import run_of
from tests.server.jobs.worlds import (
    shared_world,
    slow_source,
    small_source,
    small_world,
    world,
)
from tests.server.pages.signed_in import ann, signed_in
from tests.server.postgres import Postgres, start_postgres
from tests.server.served import serve, served

__all__ = [
    "ann",
    "bucket",
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
