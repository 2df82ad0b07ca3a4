"""What travels to the workers of an executor: little, however many tensors there are."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import orbax.checkpoint as ocp
import pytest

import reshard
from tests.orbax_trees import put
from tests.spread_executor import SpreadExecutor


class Weights:
    """The pickled sizes of what an executor was given: of the work, and of the tasks of each batch."""

    def __init__(self) -> None:
        self.work: list[int] = []
        self.tasks: list[float] = []

    def note(self, work: Callable[..., Any], batch: tuple[Any, ...]) -> None:
        self.work.append(len(pickle.dumps(work)))
        self.tasks.append(len(pickle.dumps(batch)) / len(batch))


class Weighed(ThreadPoolExecutor):
    """Threads that weigh what they are given."""

    def __init__(self) -> None:
        super().__init__(2)
        self.weights = Weights()

    def submit(self, work: Callable[..., Any], /, *arguments: Any) -> Future[Any]:
        self.weights.note(work, *arguments)
        return super().submit(work, *arguments)


class WeighedHosts(SpreadExecutor):
    """Hosts that weigh what they are given."""

    def __init__(self) -> None:
        super().__init__()
        self.weights = Weights()

    def submit(self, work: Callable[..., Any], /, *arguments: Any) -> Future[Any]:
        self.weights.note(work, *arguments)
        return super().submit(work, *arguments)


@pytest.mark.parametrize("options", [{}, {"compression": "zstd"}, {"to": "safetensors"}], ids=str)
def test_neither_writer_nor_plan_travels(options: dict[str, Any], tmp_path: Path) -> None:
    tree = {f"layer_{n}": {"kernel": np.ones((8, 8), np.float32)} for n in range(500)}
    tree["large"] = {"kernel": np.ones((1024, 512), np.float32)}
    reshard.save(tmp_path / "saved", tree)
    layout = {
        "mesh": {"axes": ["x"], "shape": [8]},
        "rules": [{"match": "large", "axes": ["x"]}],
    }
    with Weighed() as executor:
        reshard.convert(
            tmp_path / "saved", tmp_path / "out", layout=layout, executor=executor, **options
        )
    assert max(executor.weights.work) < 1000
    assert max(executor.weights.tasks) < 1500


def by_hosts(folder: Path, kernels: int, axes: list[str | None]) -> Weights:
    """Weights of a conversion on hosts: kernels of 4 MiB that stock Orbax saved as zstd from a mesh of (4, 2), to a mesh of 8."""
    kernel = np.random.default_rng(0).normal(size=(1024, 1024)).astype(np.float32)
    tree = {f"layer_{n:02}": {"kernel": put(kernel, "data", "model")} for n in range(kernels)}
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(folder / "saved", tree)
    layout = {
        "mesh": {"axes": ["x"], "shape": [8]},
        "rules": [{"match": "kernel", "axes": axes}],
    }
    with WeighedHosts() as executor:
        reshard.convert(folder / "saved", folder / "out", layout=layout, executor=executor)
    return executor.weights


@pytest.mark.parametrize("axes", [[None, "x"], ["x", None]], ids=["columns", "rows"])
def test_a_task_for_another_host_is_light(axes: list[str | None], tmp_path: Path) -> None:
    weights = by_hosts(tmp_path, 2, axes)
    assert max(weights.tasks) < 1500


def test_what_all_tasks_share_does_not_grow_with_the_tree(tmp_path: Path) -> None:
    small, large = (tmp_path / name for name in ("a", "b"))
    small.mkdir()
    large.mkdir()
    ((few,), (many,)) = (
        set(by_hosts(folder, kernels, [None, "x"]).work)
        for folder, kernels in ((small, 1), (large, 12))
    )
    assert few == many < 1000
