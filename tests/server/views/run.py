"""A training run for views, and requests about views to an application in this process."""

from __future__ import annotations

import json
import shutil
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import httpx
import numpy as np

import reshard
from tests.orbax_trees import save_pytree
from tests.server.served import Served

MAP = {"map": [{"from": "params/kernel", "to": "model.weight", "shape": "e f -> f e"}]}


@cache
def _saved(number: int) -> Path:
    """A step as stock Orbax saves it; its weights are those of its number."""
    path = Path(mkdtemp()) / "step"
    kernel = np.arange(24, dtype=np.float32).reshape(4, 6) + 1000 * number
    save_pytree(path, {"params": {"kernel": kernel, "bias": kernel[0]}})
    return path


def save_step(run: Path, step: int, number: int | None = None) -> Path:
    """A finished step of a run, with the weights of a number, by default its own."""
    return Path(shutil.copytree(_saved(step if number is None else number), run / str(step)))


def files_of(source: Path, **options: Any) -> dict[str, bytes]:
    """The files of the library's view."""
    with reshard.open_view(source, **options) as view:
        return {path: b"".join(file.read()) for path, file in view.files.items()}


def put(served: Served, name: str = "v", who: str = "ann", **rules: Any) -> httpx.Response:
    return served.ask(
        "PUT", f"/v1/views/{name}", who, json={"view": {"source": "data/run", **rules}}
    )


def revisions(
    served: Served, name: str = "v", who: str = "ann", **query: Any
) -> list[dict[str, Any]]:
    answer = served.ask("GET", f"/v1/views/{name}/revisions", who, params=query)
    assert answer.status_code == 200, answer.text
    found: list[dict[str, Any]] = answer.json()["revisions"]
    return found


def listed(
    served: Served, revision: str = "main", name: str = "v", who: str = "ann"
) -> httpx.Response:
    return served.ask("GET", f"/v1/views/{name}/files", who, params={"revision": revision})


def refused(answer: httpx.Response) -> tuple[int, str]:
    """The status and the detail of a problem."""
    assert answer.headers["content-type"] == "application/problem+json", answer.text
    found = json.loads(answer.text)
    return answer.status_code, found["detail"]
