"""A schedule that follows a training run: the seconds from each step's appearance to its conversion's start and end.

    python -m benchmarks.service.schedules                            # a step every 5 s
    python -m benchmarks.service.schedules --every 1 --steps 30
    python -m benchmarks.service.schedules --mib 64 --running 4       # several conversions at once
    python -m benchmarks.service.schedules --postgres --keep 3
    python -m benchmarks.service.schedules --versions                 # published as deltas

One server process on loopback; a thread writes each step aside and renames it, as Orbax does. Ends with 1 where a step was lost,
converted twice, or not converted. Times are told, not judged: they are the machine's.
"""

from __future__ import annotations

import argparse
import itertools
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import numpy as np

from benchmarks.service.run import make_source, postgres
from benchmarks.service.server import Served, serve

CLIENT = "trainer"
ENDED = ("succeeded", "failed", "cancelled")
LOOK_SECONDS = 0.5
"""Between two looks of the program; they do not change the times, which are the records'."""


def main() -> int:
    """Runs it and prints a table; 1 where a step was lost, doubled or not converted."""
    options = _options()
    with tempfile.TemporaryDirectory(dir=options.folder) as folder, ExitStack() as stack:
        url = stack.enter_context(postgres()) if options.postgres else None
        source = Path(folder, "source")
        make_source(source, options.mib)
        run = Path(folder, "data", "run")
        run.mkdir(parents=True)
        served = stack.enter_context(serve(Path(folder), [CLIENT], options.running, url))
        headers = {"Authorization": f"Bearer {served.secret(CLIENT)}"}
        client = stack.enter_context(httpx.Client(base_url=served.url, headers=headers, timeout=60))
        client.put("/v1/schedules/follow", json=_schedule(options)).raise_for_status()
        before, begun = served.processor_seconds(), time.monotonic()
        appeared = _train(source, run, options)
        found = _until_ended(client, options)
        seconds, processor = time.monotonic() - begun, served.processor_seconds() - before
        wrong = list(_wrong(found, appeared))
        idle = _idle_share(served, options.idle)
    print(_table(found, appeared, options))
    print(
        f"\n{seconds:.0f} s; the server took {processor:.1f} s of a processor, {idle:.1%} of one afterwards"
    )
    for line in wrong:
        print(line, file=sys.stderr)
    return 1 if wrong else 0


def _schedule(options: argparse.Namespace) -> dict[str, Any]:
    when: dict[str, Any] = {"directory": "data/run"}
    if options.look is not None:
        when["poll_seconds"] = options.look
    body: dict[str, Any] = {"when": when, "targets": [{"target": "data/out/{step}"}]}
    if options.versions:
        body["targets"] = [{"target": "data/out/weight_v{version}", "to": "safetensors"}]
        body["delta"] = {}
    if options.same_target:
        body["targets"] = [{"target": "data/out/newest", "overwrite": True}]
    if options.keep:
        body["keep"] = options.keep
    return body


def _train(source: Path, run: Path, options: argparse.Namespace) -> dict[int, float]:
    """When each step appeared, by its number."""
    appeared, begun = dict[int, float](), time.monotonic()
    random = np.random.default_rng(0)
    for step in range(options.steps):
        # A training run does not keep step with the server's looks.
        late = random.uniform(0, options.every / 2)
        time.sleep(max(0.0, begun + step * options.every + late - time.monotonic()))
        growing = run / f"{step}.orbax-checkpoint-tmp"
        shutil.copytree(source, growing)
        growing.rename(run / str(step))
        appeared[step] = time.time()
    return appeared


def _until_ended(client: httpx.Client, options: argparse.Namespace) -> list[dict[str, Any]]:
    """All conversions of the schedule, once there is one that has ended for each step."""
    deadline = time.monotonic() + options.seconds
    while time.monotonic() < deadline:
        found = list(_conversions(client))
        if sum(one["state"] in ENDED for one in found) >= options.steps:
            return found
        time.sleep(LOOK_SECONDS)
    return found


def _conversions(client: httpx.Client) -> Iterator[dict[str, Any]]:
    params = {"page_size": "200", "schedule": "follow"}
    while True:
        page = client.get("/v1/conversions", params=params).json()
        yield from page["conversions"]
        if not page["next_page_token"]:
            return
        params["page_token"] = page["next_page_token"]


def _wrong(found: list[dict[str, Any]], appeared: dict[int, float]) -> Iterator[str]:
    steps = sorted(_step(one) for one in found)
    if steps != sorted(appeared):
        yield f"{len(appeared)} steps appeared, these were converted: {steps}"
    for one in found:
        if one["state"] != "succeeded":
            yield f"step {_step(one)}: {one['state']}: {one['error']}"


def _step(conversion: dict[str, Any]) -> int:
    return int(conversion["request"]["labels"]["step"])


def _idle_share(served: Served, seconds: float) -> float:
    """The share of a processor that the server takes while no step comes."""
    before = served.processor_seconds()
    time.sleep(seconds)
    return (served.processor_seconds() - before) / seconds


def _table(
    found: list[dict[str, Any]], appeared: dict[int, float], options: argparse.Namespace
) -> str:
    kinds = {"found and queued": "created_at", "started": "started_at", "ended": "ended_at"}
    database = "PostgreSQL" if options.postgres else "SQLite"
    lines = [
        f"{database}: a step of {options.mib} MiB every {options.every:g} s, {options.steps} steps, "
        f"at most {options.running} at once; {_most_at_once(found)} ran at once",
        "",
        "| seconds after the step appeared | p50 | p95 | longest |",
        "|---|---:|---:|---:|",
    ]
    for kind, name in kinds.items():
        late = [_time(one[name]) - appeared[_step(one)] for one in found if one[name]]
        times = [f"{np.percentile(late, p):.2f}" for p in (50, 95, 100)]
        lines.append(f"| {kind} | {' | '.join(times)} |")
    return "\n".join(lines)


def _most_at_once(found: list[dict[str, Any]]) -> int:
    whole = [one for one in found if one["started_at"] and one["ended_at"]]
    changes = [(_time(one["started_at"]), 1) for one in whole]
    changes += [(_time(one["ended_at"]), -1) for one in whole]
    return max(itertools.accumulate(change for _, change in sorted(changes)))


def _time(text: str) -> float:
    return np.datetime64(text.removesuffix("Z"), "us").astype(np.int64) / 1e6


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="A schedule that follows a training run.")
    parser.add_argument("--every", type=float, default=5.0, help="seconds between two steps")
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--mib", type=int, default=4, help="size of each step")
    parser.add_argument("--running", type=int, default=2, help="conversions at once")
    parser.add_argument("--look", type=float, help="the schedule's poll_seconds; default: its own")
    parser.add_argument("--keep", type=int, help="outputs that the schedule keeps")
    parser.add_argument("--versions", action="store_true", help="publish versions, as deltas")
    parser.add_argument("--same-target", action="store_true", help="each step replaces the last")
    parser.add_argument("--postgres", action="store_true")
    parser.add_argument("--idle", type=float, default=5.0, help="seconds to watch it afterwards")
    parser.add_argument("--folder", type=Path, help="where the files are; default: temporary files")
    parser.add_argument("--seconds", type=float, default=600, help="patience after the last step")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
