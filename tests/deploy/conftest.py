"""The installation that all of these tests start servers from."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.deploy.deployed import Installation, Place, installed, place


@pytest.fixture(scope="session")
def image() -> Iterator[Installation]:
    """What the image has, made once."""
    with installed() as found:
        yield found


@pytest.fixture
def at() -> Iterator[Place]:
    """Where a deployment's paths lie during a test."""
    with place() as found:
        yield found
