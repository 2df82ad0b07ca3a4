"""The identity of weights by HTTP: asked for, and in the result."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

import reshard
from tests.server.live import Live, live


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    """Its root ``data`` has a checkpoint with an identity, and one without."""
    folder = tmp_path_factory.mktemp("served")
    for name in ("known", "unknown"):
        reshard.save(folder / "data" / name, {"w": np.arange(40_000)})
    reshard.identify(folder / "data" / "known", write=True)
    with live(folder, requests_per_minute=10**6) as found:
        yield found


@pytest.fixture
def client(server: Live) -> Iterator[httpx.Client]:
    with server.client("bob") as client:
        yield client


def converted(client: httpx.Client, **body: Any) -> Any:
    made = client.post("/v1/conversions", json=body)
    assert made.status_code == 202, made.text
    for _ in range(600):
        found = client.get(f"/v1/conversions/{made.json()['id']}").json()
        if found["done"]:
            return found
        time.sleep(0.1)
    raise AssertionError(found)


@pytest.mark.parametrize(
    ("how", "said"),
    [("carry", "carried"), ("compute", "computed"), ("check", "checked"), (None, "carried")],
)
def test_the_result_has_the_root(
    how: str | None, said: str, client: httpx.Client, server: Live
) -> None:
    target = f"data/{how or 'default'}"
    ended = converted(client, source="data/known", target=target, identity=how)
    root = json.loads(file_of(server, "data/known").read_text())["root"]
    assert ended["result"][0]["identity"] == {"root": root, "how": said}
    assert file_of(server, target).read_bytes() == file_of(server, "data/known").read_bytes()


def test_a_source_without_one_is_the_problem_of_the_conversion(client: httpx.Client) -> None:
    ended = converted(client, source="data/unknown", target="data/none", identity="check")
    assert ended["state"] == "failed"
    assert "data/unknown records no identity that could be checked" in ended["error"]["detail"]
    refused = client.post(
        "/v1/conversions", json={"source": "data/known", "target": "data/x", "identity": "what"}
    )
    assert refused.status_code == 422
    assert "expected 'carry', 'compute', 'check' or 'none'" in refused.json()["detail"]


def file_of(server: Live, checkpoint: str) -> Path:
    return server.log.parent / checkpoint / "identity.json"
