"""What travels to the workers of an executor: little, however many tensors there are."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import reshard


class Weighed(ThreadPoolExecutor):
    """Notes the pickled size of what it is given: of the work, and of each task of a batch."""

    def __init__(self) -> None:
        super().__init__(2)
        self.work: list[int] = []
        self.tasks: list[float] = []

    def submit(self, work: Callable[..., Any], /, *arguments: Any) -> Future[Any]:  # type: ignore[override]
        (batch,) = arguments
        self.work.append(len(pickle.dumps(work)))
        self.tasks.append(len(pickle.dumps(batch)) / len(batch))
        return super().submit(work, batch)


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
    assert max(executor.work) < 1000
    assert max(executor.tasks) < 1500
