"""A checkpoint that four processes of torch saved, once for all tests: they share a worker."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.oracles.oracle import Oracle


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("distcp")


@pytest.fixture(scope="session")
def of_ranks(torch: Oracle, folder: Path) -> dict[str, Any]:
    """Every tensor below ``folder`` that the processes saved: every dtype of torch, and every kind of placement."""
    wanted, *others = torch.ask("group", action="save_distcp", folders=[str(folder)])
    assert others == [wanted] * 3
    return {**wanted, "rate": "0.5"}
