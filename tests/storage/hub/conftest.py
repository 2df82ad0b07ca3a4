"""A repository with a large and a small file on a hub, and short pauses."""

from __future__ import annotations

import pytest

from reshard.storage.hub import client
from tests.emulators.hub import Hub
from tests.storage.hub.contents import FILES


@pytest.fixture
def commit(hub: Hub) -> str:
    """The commit of ``org/model``."""
    return hub.repo("org/model").commit(FILES)


@pytest.fixture(autouse=True)
def pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "FIRST_PAUSE_S", 0.02)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Retries that end within a second."""
    monkeypatch.setattr(client, "RETRY_S", 0.3)
