"""A training run for views, and requests about views to an application in this process."""

from __future__ import annotations

import os
import shutil
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import httpx
import numpy as np
from reshard_server.auth.tokens import Caller
from reshard_server.views.recorded import RecordedViews

import reshard
from tests.orbax_trees import save_pytree
from tests.server.served import Served
from tests.server.tokens import TOKENS

MAP = {"map": [{"from": "params/kernel", "to": "model.weight", "shape": "e f -> f e"}]}
LAYOUT = {"mesh": {"axes": ["model"], "shape": [2]}, "rules": [{"match": "kernel", "axes": ["model"]}]}  # fmt: skip
FILE = "model.safetensors"


@cache
def _saved(number: int) -> Path:
    """A checkpoint as stock Orbax saves it, with weights of its own."""
    path = Path(mkdtemp()) / "step"
    kernel = np.arange(24, dtype=np.float32).reshape(4, 6) + 1000 * number
    save_pytree(path, {"params": {"kernel": kernel, "bias": kernel[0]}})
    return path


def save_step(run: Path, step: int, number: int | None = None) -> Path:
    """A finished step of a run, with the weights of a number, by default its own."""
    path = Path(shutil.copytree(_saved(step if number is None else number), run / str(step)))
    os.utime(path)  # a copy keeps the time of the first, which a slow machine saved minutes ago
    return path


def file_of(source: Path, **options: Any) -> bytes:
    """The file of the library's view."""
    with reshard.open_view(source, **options) as view:
        return b"".join(view.files[FILE].read())


def put(served: Served, name: str = "v", who: str = "ann", **rules: Any) -> httpx.Response:
    body = {"view": {"source": "data/run", **rules}}
    return served.ask("PUT", f"/v1/views/{name}", who, json=body)


def revisions(served: Served, name: str = "v", who: str = "ann", **query: Any) -> list[Any]:
    answer = served.ask("GET", f"/v1/views/{name}/revisions", who, params=query)
    assert answer.status_code == 200, answer.text
    found: list[Any] = answer.json()["revisions"]
    return found


def listed(
    served: Served, revision: str = "main", name: str = "v", who: str = "ann"
) -> httpx.Response:
    return served.ask("GET", f"/v1/views/{name}/files", who, params={"revision": revision})


def commit(served: Served, revision: str = "main", name: str = "v") -> str:
    answer = listed(served, revision, name)
    assert answer.status_code == 200, answer.text
    found: str = answer.json()["commit"]
    return found


def read(served: Served, revision: str = "main", name: str = "v", who: str = "ann") -> bytes:
    """The bytes of the file. Raises ProblemError."""
    return served.portal.call(_read, views_of(served), caller(who), name, revision)


async def _read(views: RecordedViews, who: Caller, name: str, revision: str) -> bytes:
    served = await views.find(who, name, revision)
    nbytes = served.view.files[FILE].nbytes
    stream = await views.send(who, served, FILE, 0, nbytes, 200, {})
    try:
        return b"".join(stream.pieces)
    finally:
        stream.give_back()


def views_of(served: Served) -> RecordedViews:
    found: RecordedViews = served.app.state.catalogue
    return found


def caller(name: str) -> Caller:
    _, scopes, read, write = TOKENS[name]
    return Caller(name, frozenset(scopes), frozenset(read), frozenset(write))  # type: ignore[arg-type]


def refused(answer: httpx.Response) -> tuple[int, str]:
    """The status and the detail of a problem."""
    assert answer.headers["content-type"] == "application/problem+json", answer.text
    return answer.status_code, answer.json()["detail"]
