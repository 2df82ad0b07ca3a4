"""One server for all tests here, with checkpoints that stock Orbax wrote."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import numpy as np
import pytest

import reshard
from tests.orbax_trees import mesh, put, save_pytree, save_standard, small_tree
from tests.server.api.tensors.large import LARGE
from tests.server.live import Live, live


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    """A server whose root ``data`` has the checkpoints ``small``, ``raw``, ``known`` and ``damaged``."""
    folder = tmp_path_factory.mktemp("served")
    data = folder / "data"
    save_standard(data / "small", small_tree())
    line = mesh((8,), ("x",))
    save_pytree(
        data / "raw", {"w": put(LARGE, "x", on=line)}, use_ocdbt=False, use_compression=False
    )
    reshard.save(data / "known", {"w": LARGE, "b": LARGE[:3]})
    _damaged(data / "damaged")
    with live(folder, requests_per_minute=10**6) as server:
        yield server


def _damaged(path: Path) -> None:
    """The sixth of eight chunks is cut off."""
    save_pytree(
        path, {"w": put(np.tile(LARGE, (2, 1)), "x", on=mesh((8,), ("x",)))}, use_ocdbt=False
    )
    chunk = next((path / "w").glob("5*"))
    chunk.write_bytes(chunk.read_bytes()[:-100])


@pytest.fixture
def client(served: Live) -> Iterator[httpx.Client]:
    with served.client() as client:
        yield client
