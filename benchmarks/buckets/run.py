"""Conversions from bucket to bucket beside a copy of the same objects, through a limited link.

    python -m benchmarks.buckets.run [--mib 380] [--rounds 3] [--max-memory 256MiB] [--free]

Starts the tests' server of S3 behind a link of 30 ms, 90 MB/s for each stream and 150 MB/s in all (``--free``: without limits), puts
a checkpoint there, and measures whole processes in turn: obstore's copy with 16 threads, and ``reshard convert`` with several options.
Prints medians of seconds, CPU seconds for each GB, peak memory in MiB, and requests.
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
LAYOUT = "mesh: {axes: [x], shape: [4]}\nrules: [{match: ., axes: [x]}]\n"

_PREPARE = """
import sys
import numpy as np
import reshard
folder, rows = sys.argv[1], int(sys.argv[2])
rng = np.random.default_rng(0)
tree = {f"layer_{i}": rng.standard_normal((rows, 2048), np.float32) for i in range(8)}
reshard.save(f"{folder}/saved", tree)
reshard.convert(f"{folder}/saved", "s3://source/run/1", chunk_bytes="16MiB")
"""


def main() -> None:
    """Measures the contenders in turn, and prints a table."""
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("--mib", type=int, default=380)
    asked.add_argument("--rounds", type=int, default=3)
    asked.add_argument("--max-memory", default="256MiB")
    asked.add_argument("--free", action="store_true")
    given = asked.parse_args()
    here, there = get_context("spawn").Pipe()
    server = get_context("spawn").Process(target=serve, args=(there,), daemon=True)
    server.start()
    os.environ.update(here.recv())
    found: dict[str, list[tuple[Cost, int]]] = {}
    with tempfile.TemporaryDirectory() as folder:
        rows = (given.mib << 20) // 8 // 4 // 2048
        subprocess.run([sys.executable, "-c", _PREPARE, folder, str(rows)], check=True)
        (Path(folder) / "layout.yaml").write_text(LAYOUT)
        here.send("free" if given.free else "link")
        for number in range(given.rounds):
            for name, command in contenders(Path(folder), given.max_memory, number).items():
                cost = run_once(command, Path(folder) / "target", ROOT, LIMIT_S)
                here.send("count")
                found.setdefault(name, []).append((cost, here.recv()))
    here.send("end")
    show(found, given.mib / 953.67)


def serve(pipe: Connection) -> None:
    """The server, in a process of its own: a child's peak memory begins with its parent's."""
    from tests.emulators.apis.s3 import S3
    from tests.emulators.buckets import s3_environment
    from tests.emulators.link import NO_LIMITS, WIDE_AREA
    from tests.emulators.server import Server

    with Server(S3) as server:
        for bucket in ("source", "target"):
            server.objects.create_bucket(bucket)
        pipe.send(s3_environment(server.url))
        while (asked := pipe.recv()) != "end":
            if asked == "count":
                pipe.send(server.log.counts().total())
            else:
                server.link = NO_LIMITS if asked == "free" else WIDE_AREA
            server.log.clear()


def contenders(folder: Path, max_memory: str, number: int) -> dict[str, list[str]]:
    """The commands, each with a target of its own."""
    convert = [sys.executable, "-m", "reshard", "convert", "s3://source/run/1"]
    limit = ["--max-memory", max_memory]
    target = f"s3://target/{number}"
    return {
        "copy by obstore": [sys.executable, "-m", "benchmarks.buckets.copy", "s3://source/run/1", f"{target}/copy"],
        "same chunks": [*convert, f"{target}/same", "--chunk-bytes", "16MiB", *limit],
        "other shards": [*convert, f"{target}/shards", "--layout", str(folder / "layout.yaml"), *limit],
        "to bfloat16": [*convert, f"{target}/cast", "--cast", "float=bfloat16", *limit],
        "to safetensors": [*convert, f"{target}/st", "--to", "safetensors", "--file-bytes", "64MB", *limit],
    }  # fmt: skip


def show(found: dict[str, list[tuple[Cost, int]]], gigabytes: float) -> None:
    """A line for each contender."""
    base = 0.0
    print(f"{'':>16} {'s':>7} {'x copy':>7} {'CPU s/GB':>9} {'peak MiB':>9} {'requests':>9}")
    for name, runs in found.items():
        seconds = statistics.median(cost.wall_s - cost.sync_s for cost, _ in runs)
        cpu = statistics.median(cost.cpu_s for cost, _ in runs) / gigabytes
        peak = max(cost.peak_mib for cost, _ in runs)
        requests = statistics.median(count for _, count in runs)
        base = base or seconds
        print(
            f"{name:>16} {seconds:>7.1f} {seconds / base:>7.2f} {cpu:>9.1f} {peak:>9.0f} {requests:>9.0f}"
        )


if __name__ == "__main__":
    main()
