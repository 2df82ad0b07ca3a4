"""Conversions from bucket to bucket beside a copy of the same objects, through a limited link.

    python -m benchmarks.buckets.run [--cloud s3] [--mib 380] [--rounds 3] [--max-memory 128MiB 256MiB 1GiB] [--failing 0.01] [--free]

Starts the tests' server of S3 or Google Cloud behind a link of 30 ms, 90 MB/s for each stream and 150 MB/s in all (``--free``: without
limits), puts a checkpoint there, and measures whole processes in turn: obstore's copy with 16 threads, ``reshard convert`` with several
options in each budget of memory, and on Google Cloud stock Orbax, which restores and saves (``make oracles`` first). ``--failing``:
the share of requests that the server refuses with 503. Prints medians of seconds, CPU seconds for each GB, peak memory in MiB, and requests.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path

from benchmarks.measure import Cost, run_once

LIMIT_S = 600.0
ROOT = Path(__file__).parents[2]
CLOUD_PYTHON = ROOT / ".oracles/cloud/bin/python"
LAYOUT = "mesh: {axes: [x], shape: [4]}\nrules: [{match: ., axes: [x]}]\n"

_PREPARE = """
import sys
import numpy as np
import reshard
folder, rows, url = sys.argv[1], int(sys.argv[2]), sys.argv[3]
rng = np.random.default_rng(0)
tree = {f"layer_{i}": rng.standard_normal((rows, 2048), np.float32) for i in range(8)}
reshard.save(f"{folder}/saved", tree)
reshard.convert(f"{folder}/saved", f"{url}/run/1", chunk_bytes="16MiB")
"""


def main() -> None:
    """Measures the contenders in turn, and prints a table."""
    asked = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    asked.add_argument("--cloud", choices=["s3", "gs"], default="s3")
    asked.add_argument("--mib", type=int, default=380)
    asked.add_argument("--rounds", type=int, default=3)
    asked.add_argument("--max-memory", nargs="+", default=["256MiB"])
    asked.add_argument("--failing", type=float, default=0.0)
    asked.add_argument("--free", action="store_true")
    given = asked.parse_args()
    here, there = get_context("spawn").Pipe()
    server = get_context("spawn").Process(target=serve, args=(there, given.cloud), daemon=True)
    server.start()
    os.environ.update(here.recv())
    found: dict[str, list[tuple[Cost, int]]] = {}
    with tempfile.TemporaryDirectory() as folder:
        rows = (given.mib << 20) // 8 // 4 // 2048
        prepare = [sys.executable, "-c", _PREPARE, folder, str(rows), f"{given.cloud}://source"]
        subprocess.run(prepare, check=True)
        (Path(folder) / "layout.yaml").write_text(LAYOUT)
        here.send(("free" if given.free else "link", given.failing))
        for number in range(given.rounds):
            every = contenders(Path(folder), given.cloud, given.max_memory, number)
            for name, command in every.items():
                cost = run_once(command, Path(folder) / "target", ROOT, LIMIT_S)
                here.send(("count", 0.0))
                found.setdefault(name, []).append((cost, here.recv()))
    here.send(("end", 0.0))
    show(found, given.mib / 953.67)


def serve(pipe: Connection, cloud: str) -> None:
    """The server, in a process of its own: a child's peak memory begins with its parent's."""
    from tests.emulators.apis.error_answers import SLOW_DOWN
    from tests.emulators.buckets import ENVIRONMENTS, fake_gcs, fake_s3
    from tests.emulators.faults import Refuse
    from tests.emulators.link import NO_LIMITS, WIDE_AREA

    with {"s3": fake_s3, "gs": fake_gcs}[cloud]() as server:
        for bucket in ("source", "target"):
            server.objects.create_bucket(bucket)
        pipe.send(ENVIRONMENTS[cloud](server.url))
        while (asked := pipe.recv())[0] != "end":
            what, failing = asked
            if what == "count":
                pipe.send(server.log.counts().total())
            else:
                server.link = NO_LIMITS if what == "free" else WIDE_AREA
                if failing:
                    server.faults.add(Refuse(SLOW_DOWN), chance=failing, times=None, seed=1)
            server.log.clear()


def contenders(folder: Path, cloud: str, budgets: list[str], number: int) -> dict[str, list[str]]:
    """The commands, each with a target of its own."""
    source, target = f"{cloud}://source/run/1", f"{cloud}://target/{number}"
    commands = {
        "copy by obstore": [
            sys.executable,
            "-m",
            "benchmarks.buckets.copy",
            source,
            f"{target}/copy",
        ]
    }
    if cloud == "gs":
        script = str(Path(__file__).with_name("stock_orbax.py"))
        commands["Orbax"] = [str(CLOUD_PYTHON), "-P", script, source, f"{target}/orbax"]
    ways = {
        "same chunks": ["--chunk-bytes", "16MiB"],
        "other shards": ["--layout", str(folder / "layout.yaml")],
        "to bfloat16": ["--cast", "float=bfloat16"],
        "to safetensors": ["--to", "safetensors", "--file-bytes", "200MB"],
    }
    for budget in budgets:
        for name, options in ways.items():
            place = f"{target}/{budget}-{name.replace(' ', '-')}"
            convert = [sys.executable, "-m", "reshard", "convert", source, place]
            commands[f"{name}, {budget}"] = [*convert, *options, "--max-memory", budget]
    return commands


def show(found: dict[str, list[tuple[Cost, int]]], gigabytes: float) -> None:
    """A line for each contender."""
    base = 0.0
    print(f"{'':>24} {'s':>7} {'x copy':>7} {'CPU s/GB':>9} {'peak MiB':>9} {'requests':>9}")
    for name, runs in found.items():
        seconds = statistics.median(cost.wall_s - cost.sync_s for cost, _ in runs)
        cpu = statistics.median(cost.cpu_s for cost, _ in runs) / gigabytes
        peak = max(cost.peak_mib for cost, _ in runs)
        requests = statistics.median(count for _, count in runs)
        base = base or seconds
        print(
            f"{name:>24} {seconds:>7.1f} {seconds / base:>7.2f} {cpu:>9.1f} {peak:>9.0f} {requests:>9.0f}"
        )


if __name__ == "__main__":
    main()
