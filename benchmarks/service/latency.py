"""The time until a server answers one question, and until a small conversion runs and has ended, on an idle machine.

    python -m benchmarks.service.latency

One client of one server on loopback, one request after the other, for a checkpoint of four small tensors. Times are told, not
judged: they are the machine's.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from contextlib import closing
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np

import reshard
from benchmarks.service.client import URL, Errand, Http
from benchmarks.service.server import serve

CLIENT = "client"
POLL_SECONDS = 0.01


def latencies(questions: int, conversions: int) -> dict[str, list[float]]:
    """Seconds of each request, by its kind."""
    seconds: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        tree = {f"w{n}": np.arange(1024, dtype=np.float32) for n in range(4)}
        reshard.save(Path(folder, "data", "source"), tree)
        with serve(Path(folder), [CLIENT], 2, None) as served:
            errand = Errand(served.url, served.secret(CLIENT), CLIENT, 0, 0, 0)
            with closing(Http(errand)) as http:
                _inspect(http)  # what a server does once is not timed
                seconds["inspect"] = [_inspect(http) for _ in range(questions)]
                ended = [_convert(http, number) for number in range(conversions)]
    seconds["POST to running"] = [_between(each, "started_at") for each in ended]
    seconds["POST to succeeded"] = [_between(each, "ended_at") for each in ended]
    return seconds


def _inspect(http: Http) -> float:
    begun = time.perf_counter()
    status, answer = http.ask("POST", "/v1/checkpoints:inspect", {"checkpoint": "data/source"})
    if status != 200:
        raise RuntimeError(f"{status}: {answer.decode()}")
    return time.perf_counter() - begun


def _convert(http: Http, number: int) -> dict[str, Any]:
    body = {"source": "data/source", "target": f"data/out/{number}"}
    _, answer = http.ask("POST", URL, body)
    while True:
        found: dict[str, Any] = json.loads(answer)
        if found["done"]:
            if found["state"] != "succeeded":
                raise RuntimeError(str(found))
            return found
        time.sleep(POLL_SECONDS)
        _, answer = http.ask("GET", f"{URL}/{found['id']}")


def _between(conversion: dict[str, Any], moment: str) -> float:
    begun, then = (datetime.fromisoformat(conversion[name]) for name in ("created_at", moment))
    return (then - begun).total_seconds()


def main() -> int:
    """Prints a table."""
    parser = argparse.ArgumentParser(description="The time until a server answers one question.")
    parser.add_argument("--questions", type=int, default=100)
    parser.add_argument("--conversions", type=int, default=20)
    options = parser.parse_args()
    print("| ms | least | p50 | p95 |\n|---|---:|---:|---:|")
    for kind, seconds in latencies(options.questions, options.conversions).items():
        found = [f"{1000 * np.percentile(seconds, p):.0f}" for p in (0, 50, 95)]
        print(f"| {kind} | {' | '.join(found)} |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
