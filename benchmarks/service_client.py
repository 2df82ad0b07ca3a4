"""One client of a server under load: asks, looks again and again, and notes how long each answer took."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing.queues import Queue
from multiprocessing.synchronize import Barrier
from typing import Any

import httpx

URL = "/v1/conversions"
ANSWER_SECONDS = 120.0


@dataclass(frozen=True)
class Errand:
    """What one client is to do.

    Attributes:
        name: of the client, in labels and targets.
        poll_seconds: between two of its looks, once it has asked for everything.
    """

    url: str
    token: str
    name: str
    jobs: int
    poll_seconds: float


@dataclass
class Seen:
    """What one client saw.

    Attributes:
        seconds: of every answer, by kind of request.
        ids: of the conversions it was told, by their number; ``again`` those told for a key sent twice.
        refused: status and body of answers that were not expected.
    """

    seconds: dict[str, list[float]] = field(default_factory=dict)
    ids: dict[int, str] = field(default_factory=dict)
    again: dict[int, str] = field(default_factory=dict)
    refused: list[str] = field(default_factory=list)

    @contextmanager
    def timed(self, kind: str) -> Iterator[None]:
        """Notes what is done within."""
        begun = time.perf_counter()
        yield
        self.seconds.setdefault(kind, []).append(time.perf_counter() - begun)


def run_errand(errand: Errand, start: Barrier, told: Queue[Seen]) -> None:
    """What the process of one client does; all begin at once."""
    seen = Seen()
    headers = {"Authorization": f"Bearer {errand.token}"}
    with httpx.Client(base_url=errand.url, headers=headers, timeout=ANSWER_SECONDS) as http:
        start.wait()
        for number in range(errand.jobs):
            seen.ids[number] = _ask_for(http, errand, number, seen)
        seen.again[0] = _ask_for(http, errand, 0, seen)
        _first_event(http, seen)
        _look_until_done(http, errand, seen)
    told.put(seen)


def _ask_for(http: httpx.Client, errand: Errand, number: int, seen: Seen) -> str:
    name = f"{errand.name}-{number}"
    body = {"source": "data/source", "target": f"data/out/{name}", "labels": {"name": name}}
    more = {"compression": "zstd:6", "workers": 1, "max_memory": "64MiB"}
    with seen.timed("POST"):
        answer = http.post(URL, json={**body, **more}, headers={"Idempotency-Key": name})
    return str(_expected(answer, 202, seen).get("id"))


def _first_event(http: httpx.Client, seen: Seen) -> None:
    """The time until a stream says how its conversion stands."""
    with seen.timed("events"), http.stream("GET", f"{URL}/{seen.ids[0]}/events") as stream:
        next(line for line in stream.iter_lines() if line.startswith("data:"))


def _look_until_done(http: httpx.Client, errand: Errand, seen: Seen) -> None:
    """Looks at each in turn, and after each round at the list of those that are not done."""
    waiting = True
    while waiting:
        for conversion in seen.ids.values():
            with seen.timed("GET"):
                answer = http.get(f"{URL}/{conversion}")
            _expected(answer, 200, seen)
            time.sleep(errand.poll_seconds)
        with seen.timed("list"):
            answer = http.get(URL, params={"state": ["queued", "running"], "page_size": 20})
        waiting = bool(_expected(answer, 200, seen).get("conversions"))


def _expected(answer: httpx.Response, status: int, seen: Seen) -> dict[str, Any]:
    if answer.status_code != status:
        seen.refused.append(f"{answer.status_code}: {answer.text}")
    found: dict[str, Any] = answer.json()
    return found
