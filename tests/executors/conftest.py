"""A checkpoint that many tasks convert, and a cluster of three nodes, to which this process is connected."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import reshard
from reshard.executors.ray import RayExecutor
from tests.executors.cluster import ray_cluster
from tests.executors.trees import LAYOUT, files_of


@pytest.fixture(scope="package")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Some small tensors and some of a few MiB."""
    rng = np.random.default_rng(7)
    tree: dict[str, Any] = {
        f"layer_{n:02}": {
            "kernel": rng.standard_normal((64, 96)).astype(np.float32),
            "bias": np.full(7, n, np.float32),
        }
        for n in range(24)
    }
    tree |= {f"big_{n}": rng.standard_normal((512, 2048)).astype(np.float32) for n in range(12)}
    path = tmp_path_factory.mktemp("trained") / "1000"
    reshard.save(path, tree)
    return path


@pytest.fixture(scope="package")
def alone(
    trained: Path, tmp_path_factory: pytest.TempPathFactory
) -> Callable[..., dict[str, bytes]]:
    """The files that one host writes with the same options; made once for each."""
    known: dict[str, dict[str, bytes]] = {}
    folder = tmp_path_factory.mktemp("alone")

    def made(**options: Any) -> dict[str, bytes]:
        key = repr(sorted(options.items()))
        if key not in known:
            target = folder / str(len(known))
            reshard.convert(trained, target, layout=LAYOUT, workers=2, **options)
            known[key] = files_of(target)
        return known[key]

    return made


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """Three nodes of two processors each; one connection, whose worker processes all tests use."""
    with ray_cluster() as found, RayExecutor(found.address):
        yield found
