"""What the page about sizing says is enough is enough, whatever is converted to what."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import reshard
from tests.docs.page import steps

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "size-a-conversion.md"
WORKERS = 3


@pytest.fixture(scope="module")
def page() -> dict[str, Any]:
    """The functions that the page defines."""
    names: dict[str, Any] = {}
    for step in steps(PAGE.read_text("utf-8")):
        if step.kind == "python" and "def " in step.text:
            exec(step.text, names)  # noqa: S102  the code of the page
    return names


def layout(shape: tuple[int, ...], axes: tuple[str, ...], *split: str | None) -> reshard.LayoutMap:
    made = reshard.LayoutMap(reshard.DeviceMesh(shape, axes))
    made["w"] = split
    return made


@pytest.fixture(scope="module", params=["none", "zstd"])
def source(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """64 MiB of numbers that hardly compress, in eight chunks."""
    values = np.random.default_rng(0).normal(size=(4096, 4096)).astype(np.float32)
    path = tmp_path_factory.mktemp("sizing") / "source"
    trained = layout((4, 2), ("data", "model"), "data", "model")
    reshard.save(path, {"w": values}, trained, compression=request.param)
    return path


@pytest.mark.parametrize("compression", ["none", "zstd", "keep"])
@pytest.mark.parametrize("split", [(None, "model"), ("model", None)], ids=["columns", "rows"])
@pytest.mark.parametrize("cast", [{}, {"w": "bfloat16"}], ids=["as it is", "cast"])
def test_enough_memory_lets_every_worker_work(
    page: dict[str, Callable[..., int]],
    source: Path,
    tmp_path: Path,
    compression: str,
    split: tuple[str | None, ...],
    cast: dict[str, str],
) -> None:
    itemsize = 2 if cast else 4
    is_raw = compression == "none" or (compression == "keep" and is_raw_source(source))
    chunk = 0 if is_raw else 4096 * 4096 * itemsize // 8
    budget = page["enough_memory"](WORKERS, chunk)
    plan = reshard.plan(
        source, tmp_path / "target", layout=layout((8,), ("model",), *split), cast=cast,
        compression=compression, workers=WORKERS, max_memory=budget,
    ).plan  # fmt: skip
    assert plan.peak_bytes <= budget
    (move,) = plan.tensors
    at_once = min(WORKERS, move.price.tasks)
    assert at_once * move.price.task_bytes <= budget
    assert plan.written_bytes <= page["target_bytes"](4096 * 4096, itemsize, 8, 1)


def is_raw_source(source: Path) -> bool:
    (tensor,) = reshard.inspect(source).tensors.values()
    return tensor.encoding.compressor == "none"
