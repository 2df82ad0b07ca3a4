"""Patterns for which Python's search takes years, sent to a real server: it answers, and /livez does meanwhile."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

import reshard
from tests.server.live import PATIENCE_SECONDS, Live, live

HOSTILE = "^([a-z0-9_/]+)+!$"
ANCHORS = "(?:^|$)" * 40 + r"\b"
NAME = "query_projection_of_the_first_layer_and_of_all_that_come_after_it"
SOURCE = "data/run"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    folder = tmp_path_factory.mktemp("patterns")
    reshard.save(folder / "data" / "run", {"params": {NAME: np.zeros(4, np.float32)}})
    with live(folder, requests_per_minute=10**6, looks=2) as found:
        yield found


@contextmanager
def watched(server: Live) -> Iterator[None]:
    """/livez answers all the time: no request waits for a minute, which a search would take years for."""
    ended = threading.Event()

    def watch() -> int:
        answers = 0
        with server.client(None) as client:
            while not ended.is_set():
                assert client.get("/livez", timeout=60).status_code == 200
                answers += 1
                time.sleep(0.05)
        return answers

    with ThreadPoolExecutor(1) as pool:
        watching = pool.submit(watch)
        try:
            yield
        finally:
            ended.set()
        assert watching.result(PATIENCE_SECONDS)


def _ended(client: httpx.Client, made: dict[str, Any]) -> dict[str, Any]:
    deadline = time.monotonic() + 120
    while not (found := client.get(f"/v1/conversions/{made['id']}").json())["done"]:
        assert time.monotonic() < deadline, found
        time.sleep(0.1)
    return dict(found)


def test_tensors(server: Live) -> None:
    with watched(server), server.client() as client:
        for kind in ("select", "drop"):
            asked = {"checkpoint": SOURCE, "shard": 0, kind: HOSTILE}
            found = client.get("/v1/tensors", params=asked)
            assert found.status_code == 422, found.text
            assert f"{kind} '{HOSTILE}' matches none of the 1 names" in found.json()["detail"]
        found = client.get(
            "/v1/tensors", params={"checkpoint": SOURCE, "shard": 0, "select": "(?!x)"}
        )
        assert found.status_code == 422
        assert "look-ahead and look-behind" in found.json()["detail"]
        assert (
            found.json()["remedy"]
            == "leave names out with drop, or put a rule that takes them before this one"
        )


def test_layouts(server: Live) -> None:
    with watched(server), server.client() as client:
        body = {"layout": {"rename": [{"match": ANCHORS, "to": "x/"}]}}
        assert client.put("/v1/layouts/anchors", json=body).status_code == 201
        for name, match, words in (
            (
                "deep",
                "(" * 499 + "x" + ")" * 499,
                "parentheses are nested more than 100 deep; use fewer",
            ),
            ("large", "[^x]{999}" * 90, "is too large to compile in 8 MiB"),
            ("long", "x" * 20_000, "it has 20000 characters, more than 16384; use several rules"),
            ("back", r"(a)\1", "references to a group"),
        ):
            body = {"layout": {"rules": [{"match": match, "axes": []}]}}
            found = client.put(f"/v1/layouts/{name}", json=body)
            assert found.status_code == 422, found.text
            assert words in found.json()["detail"]
            assert "rules[0].match" in found.json()["detail"]
        rules = [{"match": HOSTILE, "axes": ["m"]}]
        asked = {"checkpoint": SOURCE, "layout": {"mesh": {"m": 2}, "rules": rules}}
        found = client.post("/v1/layouts:preview", json=asked)
        assert found.status_code == 200, found.text
        assert "matches no tensor" in found.json()["warnings"][0]


def test_conversions(server: Live) -> None:
    """In a child such a pattern kept a slot for ever; now the conversion fails, or is done."""
    with watched(server), server.client() as client:
        asked = {"source": SOURCE, "target": "data/selected", "select": [HOSTILE]}
        ended = _ended(client, client.post("/v1/conversions", json=asked).json())
        assert ended["state"] == "failed"
        assert "matches none of the 1 names" in ended["error"]["detail"]
        asked = {"source": SOURCE, "target": "data/renamed", "rename": [[ANCHORS, "x/"]]}
        ended = _ended(client, client.post("/v1/conversions", json=asked).json())
        assert ended["state"] == "succeeded", ended
        for kind, value in (
            ("select", ["(?=a)"]),
            ("rename", [["(?=a)", "x"]]),
            ("cast", [["(?=a)", "float32"]]),
        ):
            asked = {"source": SOURCE, "target": "data/none", kind: value}
            found = client.post("/v1/conversions", json=asked)
            assert found.status_code == 422, found.text
            assert (found.json()["field"], "look-ahead" in found.json()["detail"]) == (
                f"/{kind}",
                True,
            )


def test_it_ends_when_it_is_told_to(tmp_path: Path) -> None:
    reshard.save(tmp_path / "data" / "run", {"params": {NAME: np.zeros(4, np.float32)}})
    with live(tmp_path) as server:
        with server.client() as client:
            client.get("/v1/tensors", params={"checkpoint": SOURCE, "shard": 0, "select": HOSTILE})
        assert server.end(60) == 0
