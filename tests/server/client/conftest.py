"""One server for the tests of a module, and clients of it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from reshard_server.client import Client

import reshard
from tests.server.client.weights import WEIGHTS
from tests.server.live import Live, live
from tests.server.tokens import TOKENS


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    folder = tmp_path_factory.mktemp("served")
    reshard.save(folder / "data" / "run", {"params": {"kernel": WEIGHTS, "bias": WEIGHTS[0]}})
    with live(folder, requests_per_minute=10**6) as server:
        yield server


@pytest.fixture
def client(served: Live) -> Iterator[Client]:
    with Client(served.url, TOKENS["ann"][0]) as found:
        yield found


@pytest.fixture
def data(served: Live) -> Path:
    return served.log.parent / "data"
