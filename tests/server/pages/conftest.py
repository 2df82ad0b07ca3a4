"""The folder of the screenshots."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.server.pages.chromium import SHOWN


@pytest.fixture(scope="session")
def pages_shown() -> Path | None:
    """The folder for screenshots of every page; None unless the environment names one."""
    folder = os.environ.get(SHOWN)
    if folder is None:
        return None
    Path(folder).mkdir(parents=True, exist_ok=True)
    return Path(folder)
