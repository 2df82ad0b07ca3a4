"""One set of real checkpoints for all tests of this folder."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def specimens(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Small checkpoints in every form; never changed, only copied."""
    from tests.robustness.hostile.specimens import make_specimens

    root = tmp_path_factory.mktemp("specimens")
    make_specimens(root)
    return root
