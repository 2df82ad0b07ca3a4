"""Many clients at once, with real conversions: no conversion is lost, and none is done twice."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

import reshard
from tests.server.live import Live, live
from tests.server.postgres import Postgres
from tests.server.threads import run_together

URL = "/v1/conversions"
CLIENTS = 20
TREE = {"kernel": np.arange(64, dtype=np.float32).reshape(8, 8)}


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.campaign)])
def jobs(request: pytest.FixtureRequest) -> int:
    """Of each client."""
    return {"sqlite": 2, "postgres": 1}[request.param]


@pytest.fixture
def server(jobs: int, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Live]:
    more: dict[str, Any] = {"running": 4, "running_per_token": 4, "requests_per_minute": 10**6}
    if jobs == 1:
        postgres: Postgres = request.getfixturevalue("postgres")
        more["database_url"] = postgres.new_database()
    reshard.save(tmp_path / "data" / "source", TREE)
    with live(tmp_path, **more) as found:
        yield found


def test_nothing_is_lost_or_doubled(server: Live, jobs: int, tmp_path: Path) -> None:
    told = [i for ids in asked_by_all(server, jobs, _ask_for_each) for i in ids]
    assert len(set(told)) == CLIENTS * jobs == len(told)
    with server.client() as client:
        ended = {i: _end(client, i) for i in told}
        kept = _all(client)
    assert sorted(kept) == sorted(told)
    assert {(c["state"], c["attempts"]) for c in ended.values()} == {("succeeded", 1)}
    targets = {c["request"]["target"].removeprefix("data/") for c in ended.values()}
    assert targets == {p.name for p in (tmp_path / "data").iterdir()} - {"source"}
    for target in targets:
        assert not reshard.verify(
            tmp_path / "data" / "source", tmp_path / "data" / target
        ).differences


def test_a_key_that_all_send_leads_to_one_conversion(server: Live, jobs: int) -> None:
    told = [i for ids in asked_by_all(server, jobs, _ask_for_the_same) for i in ids]
    assert Counter(Counter(told).values()) == {CLIENTS: jobs}
    with server.client() as client:
        assert sorted(_all(client)) == sorted(set(told))
        assert {_end(client, i)["state"] for i in set(told)} == {"succeeded"}


def asked_by_all(server: Live, jobs: int, ask: Any) -> list[list[str]]:
    """The ids that each client received; all clients begin at once."""
    start = threading.Barrier(CLIENTS)

    def run(number: int) -> list[str]:
        with _client(server) as client:
            start.wait(120)
            return [ask(client, number, job) for job in range(jobs)]

    return run_together([partial(run, number) for number in range(CLIENTS)])


@contextmanager
def _client(server: Live) -> Iterator[httpx.Client]:
    with server.client() as client:
        client.timeout = httpx.Timeout(120)
        yield client


def _ask_for_each(client: httpx.Client, number: int, job: int) -> str:
    return _ask(client, f"of-{number}-{job}")


def _ask_for_the_same(client: httpx.Client, _number: int, job: int) -> str:
    return _ask(client, f"same-{job}")


def _ask(client: httpx.Client, name: str) -> str:
    body = {"source": "data/source", "target": f"data/{name}"}
    answer = client.post(URL, json=body, headers={"Idempotency-Key": name})
    assert answer.status_code == 202, answer.text
    found: str = answer.json()["id"]
    return found


def _end(client: httpx.Client, conversion: str) -> dict[str, Any]:
    """The conversion once it has ended, by its events."""
    with client.stream("GET", f"{URL}/{conversion}/events", timeout=120) as stream:
        assert "event: end" in "".join(stream.iter_text())
    found: dict[str, Any] = client.get(f"{URL}/{conversion}").json()
    return found


def _all(client: httpx.Client) -> list[str]:
    found, token = [], ""
    while True:
        params = {"page_size": 17, **({"page_token": token} if token else {})}
        page = client.get(URL, params=params).json()
        found += [c["id"] for c in page["conversions"]]
        if not (token := page["next_page_token"]):
            return found
