"""One client of a server under load: asks, looks again and again, and notes how long each answer took.

It speaks through ``http.client``, which takes a tenth of the processor time of richer clients: twenty of
those on the server's own two cores would be measured instead of the server.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from http.client import HTTPConnection
from multiprocessing.queues import Queue
from multiprocessing.synchronize import Barrier
from typing import Any
from urllib.parse import urlencode, urlsplit

URL = "/v1/conversions"
ANSWER_SECONDS = 120.0


@dataclass(frozen=True)
class Errand:
    """What one client is to do.

    Attributes:
        name: of the client, in labels and targets.
        think_seconds: between two conversions that it asks for.
        poll_seconds: between two of its looks, once it has asked for everything.
    """

    url: str
    token: str
    name: str
    jobs: int
    think_seconds: float
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


class Http:
    """One kept-alive connection of a client."""

    def __init__(self, errand: Errand) -> None:
        self._connection = HTTPConnection(urlsplit(errand.url).netloc, timeout=ANSWER_SECONDS)
        self._headers = {"Authorization": f"Bearer {errand.token}"}

    def ask(self, method: str, url: str, body: Any = None, **headers: str) -> tuple[int, bytes]:
        """Status and body of the answer."""
        sent = None if body is None else json.dumps(body).encode()
        if sent is not None:
            headers["Content-Type"] = "application/json"
        self._connection.request(method, url, sent, self._headers | headers)
        answer = self._connection.getresponse()
        return answer.status, answer.read()

    def first_data(self, url: str) -> bytes:
        """The first line of data that a stream of events tells; the connection is closed then."""
        self._connection.request("GET", url, headers=self._headers)
        with closing(self._connection), self._connection.getresponse() as answer:
            return next(line for line in answer if line.startswith(b"data:"))

    def close(self) -> None:
        self._connection.close()


def run_errand(errand: Errand, start: Barrier, told: Queue[Seen]) -> None:
    """What the process of one client does; all begin at once."""
    seen = Seen()
    with closing(Http(errand)) as http:
        start.wait()
        for number in range(errand.jobs):
            seen.ids[number] = _ask_for(http, errand, number, seen)
            time.sleep(errand.think_seconds)
        seen.again[0] = _ask_for(http, errand, 0, seen)
        _first_event(http, seen)
        _look_until_done(http, errand, seen)
    told.put(seen)


def send_hostile(errand: Errand) -> None:
    """Sends patterns that take a backtracking engine for ever, once a second until it is ended."""
    slow, nested = "^([a-z0-9_/]+)+!$", "(?:^|$)" * 40 + r"\b"
    query = urlencode([("checkpoint", "data/source"), ("shard", "0"), ("select", slow)])
    body = {"source": "data/source", "target": "data/hostile", "rename": [[nested, "x"]]}
    with closing(Http(errand)) as http:
        while True:
            http.ask("GET", f"/v1/tensors?{query}")
            http.ask("POST", "/v1/plans", body)
            time.sleep(1)


def _ask_for(http: Http, errand: Errand, number: int, seen: Seen) -> str:
    name = f"{errand.name}-{number}"
    body = {"source": "data/source", "target": f"data/out/{name}", "labels": {"name": name}}
    more = {"compression": "zstd:6", "workers": 1, "max_memory": "64MiB"}
    with seen.timed("POST"):
        status, answer = http.ask("POST", URL, {**body, **more}, **{"Idempotency-Key": name})
    return str(_expected(status, answer, 202, seen).get("id"))


def _first_event(http: Http, seen: Seen) -> None:
    """The time until a stream says how its conversion stands."""
    with seen.timed("events"):
        http.first_data(f"{URL}/{seen.ids[0]}/events")


def _look_until_done(http: Http, errand: Errand, seen: Seen) -> None:
    """Looks at each in turn, and after each round at the list of those that are not done."""
    query = urlencode([("state", "queued"), ("state", "running"), ("page_size", "20")])
    waiting = True
    while waiting:
        for conversion in seen.ids.values():
            with seen.timed("GET"):
                status, answer = http.ask("GET", f"{URL}/{conversion}")
            _expected(status, answer, 200, seen)
            time.sleep(errand.poll_seconds)
        with seen.timed("list"):
            status, answer = http.ask("GET", f"{URL}?{query}")
        waiting = bool(_expected(status, answer, 200, seen).get("conversions"))


def _expected(status: int, answer: bytes, wanted: int, seen: Seen) -> dict[str, Any]:
    if status != wanted:
        seen.refused.append(f"{status}: {answer.decode(errors='replace')}")
    found: dict[str, Any] = json.loads(answer)
    return found
