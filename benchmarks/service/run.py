"""A server under load: many clients queue conversions while some run; how long does each answer take?

    python -m benchmarks.service.run                 # the embedded SQLite
    python -m benchmarks.service.run --postgres      # a PostgreSQL that is started for it
    python -m benchmarks.service.run --hostile       # and one that sends hostile patterns, each second
    python -m benchmarks.service.run --clients 4 --jobs 20 --mib 1      # a small one

One server process on loopback with real checkpoints below it, each client a process of its own. Ends
with 1 where a conversion was lost, doubled, tried twice or not converted bit by bit, or an answer was
not the one that was expected. Times are told, not judged: they are the machine's.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import numpy as np

import reshard
from benchmarks.service.client import URL, Errand, Seen, run_errand, send_hostile
from benchmarks.service.server import Served, serve
from tests.server.postgres import start_postgres

KINDS = ("POST", "GET", "list", "events")
TENSOR_MIB = 1


def main() -> int:
    """Runs it and prints a table; 1 where something was lost or doubled."""
    options = _options()
    with tempfile.TemporaryDirectory(dir=options.folder) as folder, ExitStack() as stack:
        url = stack.enter_context(postgres()) if options.postgres else None
        make_source(Path(folder, "data", "source"), options.mib)
        tokens = [f"client-{n}" for n in range(options.clients)]
        served = stack.enter_context(serve(Path(folder), tokens, options.running, url))
        begun = time.monotonic()
        seen = _all_clients(served, tokens, options)
        seconds = time.monotonic() - begun
        wrong = list(_wrong(served, tokens, seen, Path(folder, "data")))
        processor = served.processor_seconds()
    print(_table(seen, options, seconds, processor))
    for line in wrong:
        print(line, file=sys.stderr)
    return 1 if wrong else 0


def make_source(path: Path, mib: int) -> None:
    """A checkpoint that takes a while to compress."""
    rng = np.random.default_rng(0)
    shape = (TENSOR_MIB, 512, 512)
    reshard.save(path, {f"w{n}": rng.integers(0, 4096, shape, np.int32) for n in range(mib)})


def _all_clients(served: Served, tokens: list[str], options: argparse.Namespace) -> list[Seen]:
    """What every client saw; each in a process of its own, so that none waits for another."""
    context = multiprocessing.get_context("spawn")
    start, told = context.Barrier(len(tokens)), context.Queue()
    jobs = options.jobs // len(tokens)
    errands = [
        Errand(served.url, served.secret(t), t, jobs, options.think, options.poll) for t in tokens
    ]
    clients = [context.Process(target=run_errand, args=(e, start, told)) for e in errands]
    for client in clients:
        client.start()
    hostile = context.Process(target=send_hostile, args=(errands[0],), daemon=True)
    if options.hostile:
        hostile.start()
    seen = [told.get(timeout=options.seconds) for _ in clients]
    for client in clients:
        client.join()
    if options.hostile:
        hostile.terminate()
        hostile.join()
    return seen


def _wrong(served: Served, tokens: list[str], seen: list[Seen], data: Path) -> Iterator[str]:
    """Whatever was lost, doubled or not as it should be."""
    for one in seen:
        yield from (f"not expected: {answer}" for answer in one.refused)
        if any(one.ids[number] != again for number, again in one.again.items()):
            yield f"a key that was sent twice led to two conversions: {one.again}"
    told = Counter(i for one in seen for i in one.ids.values())
    kept = {c["id"]: c for t in tokens for c in _conversions(served, t)}
    if set(kept) != set(told) or any(number != 1 for number in told.values()):
        yield f"{sum(told.values())} were told ({len(told)} different), {len(kept)} are recorded"
    for conversion in kept.values():
        yield from _wrong_end(conversion, data)


def _wrong_end(conversion: dict[str, Any], data: Path) -> Iterator[str]:
    name = conversion["request"]["labels"]["name"]
    if (conversion["state"], conversion["attempts"]) != ("succeeded", 1):
        yield f"{name}: {conversion['state']} after {conversion['attempts']} attempts: {conversion['error']}"
    elif not (data / "out" / name / "_METADATA").is_file():
        yield f"{name}: there is no target"
    elif any(t["target_digest"] != t["source_digest"] for t in conversion["result"][0]["tensors"]):
        yield f"{name}: the digests differ"


def _conversions(served: Served, token: str) -> Iterator[dict[str, Any]]:
    params = {"page_size": "200"}
    headers = {"Authorization": f"Bearer {served.secret(token)}"}
    while True:
        page = httpx.get(served.url + URL, params=params, headers=headers, timeout=60).json()
        for listed in page["conversions"]:
            url = f"{served.url}{URL}/{listed['id']}"  # a listing has no reports
            yield httpx.get(url, headers=headers, timeout=60).json()
        if not page["next_page_token"]:
            return
        params["page_token"] = page["next_page_token"]


def _table(seen: list[Seen], options: argparse.Namespace, seconds: float, processor: float) -> str:
    database = "PostgreSQL" if options.postgres else "SQLite"
    load = " ".join(f"{x:.1f}" for x in os.getloadavg())
    lines = [
        f"{database}: {options.jobs} conversions of {options.mib} MiB from {options.clients} clients, "
        f"{options.running} at once, {seconds:.0f} s; the server took {processor:.1f} s of a processor; load {load}",
        "",
        "| request | number | p50 ms | p95 ms | p99 ms | longest ms |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    found = {k: np.concatenate([np.array(one.seconds.get(k, [])) for one in seen]) for k in KINDS}
    found["all"] = np.concatenate(list(found.values()))
    for kind, answers in found.items():
        times = [f"{1000 * np.percentile(answers, p):.0f}" for p in (50, 95, 99, 100)]
        lines.append(f"| {kind} | {len(answers)} | {' | '.join(times)} |")
    return "\n".join(lines)


@contextmanager
def postgres() -> Iterator[str]:
    """A PostgreSQL of its own, with an empty database; its URL."""
    started = start_postgres()
    try:
        yield started.new_database()
    finally:
        started.end()


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="A server under load.")
    parser.add_argument("--clients", type=int, default=20)
    parser.add_argument("--jobs", type=int, default=200, help="of all clients together")
    parser.add_argument("--running", type=int, default=4, help="conversions at once")
    parser.add_argument("--mib", type=int, default=8, help="size of each conversion")
    parser.add_argument("--think", type=float, default=0.0, help="seconds between requests for one")
    parser.add_argument("--poll", type=float, default=0.5, help="seconds between looks of a client")
    parser.add_argument("--postgres", action="store_true")
    parser.add_argument("--hostile", action="store_true", help="send hostile patterns meanwhile")
    parser.add_argument("--folder", type=Path, help="where the files are; default: temporary files")
    parser.add_argument("--seconds", type=float, default=1800, help="patience")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
