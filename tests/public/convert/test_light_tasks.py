"""The work that a run gives to an executor of threads: little, however many tensors there are."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import reshard


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
