"""Fixtures of all tests of the server: PostgreSQL, an application in this process, a checkpoint below its root."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.server.checkpoint import run_of
from tests.server.postgres import Postgres, start_postgres
from tests.server.served import serve, served

__all__ = ["postgres", "run_of", "serve", "served"]


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    started = start_postgres()
    yield started
    started.end()
