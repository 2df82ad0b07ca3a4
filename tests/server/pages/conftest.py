"""Browsers of people who are signed in."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.server.pages.browser import Browser
from tests.server.pages.chromium import SHOWN
from tests.server.served import Served


@pytest.fixture
def signed_in(served: Served) -> Callable[[str], Browser]:
    """Makes the browser of somebody."""

    def browser(who: str) -> Browser:
        made = Browser(served)
        made.sign_in(who)
        return made

    return browser


@pytest.fixture
def ann(signed_in: Callable[[str], Browser]) -> Browser:
    return signed_in("ann")


@pytest.fixture(scope="session")
def pages_shown() -> Path | None:
    """Where screenshots of every page are written; nowhere unless the environment names a folder."""
    folder = os.environ.get(SHOWN)
    if folder is None:
        return None
    Path(folder).mkdir(parents=True, exist_ok=True)
    return Path(folder)
