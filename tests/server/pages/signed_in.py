"""Fixtures of signed-in browsers."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.server.pages.browser import Browser
from tests.server.served import Served


@pytest.fixture
def signed_in(served: Served) -> Callable[[str], Browser]:
    """Makes a browser in which the given person is signed in."""

    def browser(who: str) -> Browser:
        made = Browser(served)
        made.sign_in(who)
        return made

    return browser


@pytest.fixture
def ann(signed_in: Callable[[str], Browser]) -> Browser:
    return signed_in("ann")
