"""The sources, saved once, in a folder of which each test has a copy."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.faults.cases import CASES, clear, save_sources


@pytest.fixture(scope="session")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("sources")
    save_sources(root)
    CASES[0].run(root)  # loads all code that is loaded when it is needed
    clear(root)
    return root


@pytest.fixture
def work(sources: Path, tmp_path: Path) -> Path:
    """A folder with a copy of every source, and nothing else in it."""
    return Path(shutil.copytree(sources, tmp_path / "work"))
