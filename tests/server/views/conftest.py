"""The folder of a training run below the root ``data``."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def run(tmp_path: Path) -> Path:
    found = tmp_path / "data" / "run"
    found.mkdir(parents=True)
    return found
