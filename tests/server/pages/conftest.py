"""The application in this process, a checkpoint below its root, and browsers of people who are signed in."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.server.checkpoint import run_of
from tests.server.pages.browser import Browser
from tests.server.routes.conftest import Served, serve, served

__all__ = ["ann", "run_of", "serve", "served", "signed_in"]


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
