"""A server that is asked for more than it can do: no answer but 200, 202, 429 and 503, and every slot free afterwards.

    python -m benchmarks.service.overload                        # three minutes
    python -m benchmarks.service.overload --seconds 10 --watchers 40 --queued 10

Watchers follow the events of conversions, which are kept queued, while inspections are asked for at a steady rate. A third of
the watchers and of the askers leave while they wait. Ends with 1 where an answer was another one, a slot or a stream was not
given back, a conversion did not succeed at its first attempt, or the log has a traceback.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np

from benchmarks.service.client import URL
from benchmarks.service.run import make_source
from benchmarks.service.server import Served, serve

ALLOWED = {200, 202, 429, 503}
LOOKS = 2
"""Inspections at once; the others wait for a slot."""

SETTINGS: dict[str, Any] = {
    "looks": LOOKS, "looks_per_token": LOOKS, "streams": 150, "streams_per_token": 150, "requests_per_minute": 100_000,
}  # fmt: skip
CLIENT = "client"
LEAVES_AFTER_SECONDS = 3.0
"""The longest that a client waits if it is one of those that leave."""


@dataclass(frozen=True)
class Load:
    """How much is asked for.

    Attributes:
        watchers: streams of events at once; some are refused.
        queued: conversions that wait, as long as the load lasts.
        inspects: inspections asked for in a second.
    """

    seconds: float = 180.0
    watchers: int = 200
    queued: int = 50
    inspects: float = 20.0


@dataclass
class Seen:
    """What the clients saw.

    Attributes:
        answers: how often each request was answered with each status; 0 for none.
        left: how many clients left before their answer or stream ended.
        inspect_seconds: how long the inspections took that were answered with 200.
        ids: of the conversions, in the order of their requests.
    """

    answers: Counter[tuple[str, int]] = field(default_factory=Counter)
    left: Counter[str] = field(default_factory=Counter)
    inspect_seconds: list[float] = field(default_factory=list)
    ids: list[str] = field(default_factory=list)


def overload(load: Load) -> tuple[Seen, list[str]]:
    """What was seen, and what was wrong."""
    with tempfile.TemporaryDirectory() as folder:
        make_source(Path(folder, "data", "source"), 1)
        with serve(Path(folder), [CLIENT], 2, None, **SETTINGS) as served:
            clients = _Clients(served, load)
            asyncio.run(clients.run())
            wrong = list(asyncio.run(clients.wrong()))
        if "Traceback" in Path(folder, "log").read_text():
            wrong.append("the log has a traceback")
    return clients.seen, wrong


class _Clients:
    """All clients, in one event loop; each request has a connection of its own."""

    def __init__(self, served: Served, load: Load) -> None:
        self.load, self.seen = load, Seen()
        self._address = urlsplit(served.url)
        self._secret = served.secret(CLIENT)
        self._draw = np.random.default_rng(0)
        self._targets = itertools.count()
        self._end = 0.0

    async def run(self) -> None:
        """The load, from its start until the last client has left."""
        self._end = time.monotonic() + self.load.seconds
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._keep_queued())
            for _ in range(self.load.watchers):
                tasks.create_task(self._watch())
            while time.monotonic() < self._end:
                tasks.create_task(self._inspect(self._patience()))
                await asyncio.sleep(1 / self.load.inspects)

    async def wrong(self) -> Iterator[str]:
        """Whatever is not as it should be, once everything is quiet again."""
        seen = self.seen
        found = [f"{kind} was answered with {s}" for kind, s in seen.answers if s not in ALLOWED]
        conversions = [await self._ended(each) for each in seen.ids]
        found += [
            f"{c['id']}: {c['state']} after {c['attempts']} attempts"
            for c in conversions
            if (c["state"], c["attempts"]) != ("succeeded", 1)
        ]
        answers = await asyncio.gather(*(self._ask("POST", *_INSPECT) for _ in range(LOOKS)))
        if [status for status, _ in answers] != [200] * LOOKS:
            found.append(f"a slot is missing: {answers}")
        _, metrics = await self._ask("GET", "/metrics")
        if b"\nreshard_streams_open 0.0\n" not in metrics:
            found.append("streams are open that nobody reads")
        return iter(found)

    async def _keep_queued(self) -> None:
        while time.monotonic() < self._end:
            status, listed = await self._ask("GET", f"{URL}?state=queued&page_size=200")
            self.seen.answers["list", status] += 1
            waiting = len(json.loads(listed)["conversions"]) if status == 200 else self.load.queued
            missing = range(self.load.queued - waiting)
            await asyncio.gather(*(self._convert(next(self._targets)) for _ in missing))
            await asyncio.sleep(0.2)

    async def _convert(self, number: int) -> None:
        body = {"source": "data/source", "target": f"data/out/{number}", "workers": 1}
        status, answer = await self._ask("POST", URL, body)
        self.seen.answers["convert", status] += 1
        if status == 202:
            self.seen.ids.append(json.loads(answer)["id"])

    async def _watch(self) -> None:
        while time.monotonic() < self._end:
            await asyncio.sleep(self._draw.uniform(0, 1))
            if self.seen.ids:
                recent = self.seen.ids[-self.load.queued :]
                path = f"{URL}/{recent[self._draw.integers(len(recent))]}/events"
                left = max(0.1, self._end - time.monotonic())
                await self._heard("watch", "GET", path, None, min(self._patience(), left))

    async def _inspect(self, patience: float) -> None:
        begun = time.monotonic()
        if await self._heard("inspect", "POST", *_INSPECT, patience) == 200:
            self.seen.inspect_seconds.append(time.monotonic() - begun)

    def _patience(self) -> float:
        """The seconds that a client waits; a third of them leave."""
        leaves = self._draw.integers(3) == 0
        return self._draw.uniform(0, LEAVES_AFTER_SECONDS) if leaves else 600.0

    async def _heard(
        self, kind: str, method: str, path: str, body: Any, seconds: float
    ) -> int | None:
        try:
            async with asyncio.timeout(seconds):
                status, _ = await self._ask(method, path, body)
        except TimeoutError:
            self.seen.left[kind] += 1
            return None
        self.seen.answers[kind, status] += 1
        return status

    async def _ask(self, method: str, path: str, body: Any = None) -> tuple[int, bytes]:
        """Status and body of the answer; 0 where the connection ended without one."""
        sent = b"" if body is None else json.dumps(body).encode()
        head = f"{method} {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {self._secret}\r\nConnection: close\r\n"
        head += f"Content-Type: application/json\r\nContent-Length: {len(sent)}\r\n\r\n"
        reader, writer = await asyncio.open_connection(self._address.hostname, self._address.port)
        try:
            writer.write(head.encode() + sent)
            first, _, answer = (await reader.read()).partition(b"\r\n\r\n")
        except ConnectionError:
            return 0, b""
        finally:
            writer.transport.abort()
        return int(first.split()[1]) if first else 0, answer

    async def _ended(self, conversion: str) -> dict[str, Any]:
        while True:
            _, answer = await self._ask("GET", f"{URL}/{conversion}?fields=id,state,attempts,done")
            found: dict[str, Any] = json.loads(answer)
            if found["done"]:
                return found
            await asyncio.sleep(0.1)


_INSPECT = ("/v1/checkpoints:inspect", {"checkpoint": "data/source"})


def _table(seen: Seen) -> str:
    lines = ["| request | status | number |", "|---|---:|---:|"]
    lines += [f"| {kind} | {status} | {n} |" for (kind, status), n in sorted(seen.answers.items())]
    lines += [f"| {kind} | left | {number} |" for kind, number in sorted(seen.left.items())]
    median = 1000 * statistics.median(seen.inspect_seconds or [0])
    return "\n".join([*lines, "", f"inspect, answered with 200: p50 {median:.0f} ms"])


def main() -> int:
    """Puts the load on a server and prints a table; 1 where something was wrong."""
    parser = argparse.ArgumentParser(description="A server that is asked for more than it can do.")
    for name, value in vars(Load()).items():
        parser.add_argument(f"--{name}", type=type(value), default=value)
    seen, wrong = overload(Load(**vars(parser.parse_args())))
    print(_table(seen))
    for line in wrong:
        print(line, file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
