"""Kills workers, nodes and coordinators of a Ray cluster at random moments: ``python -m benchmarks.robustness.kill_hosts --runs 20``.

Each run converts a checkpoint on three local nodes, to a folder or to a bucket of the tests' S3. A worker, a node or the
coordinator gets SIGKILL, or a node SIGSTOP until the command ends; then the command is run again where it failed: a node that is
frozen on this machine keeps the lock of its part. The bytes must be those of one host, and no process, file, object or lock may be left.
Prints a line for each run.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

import reshard
from tests.emulators.buckets import fake_s3, lend
from tests.executors.cluster import NODE, processes_of, ray_cluster, send, until, workers
from tests.executors.trees import LAYOUT

VICTIMS = ("worker", "node", "coordinator", "frozen")

PARTS = 24
"""So many that some are still to do whenever something dies."""

_PROGRAM = """
import sys, json, os, reshard
from reshard.executors.ray import RayExecutor
source, target, address, layout, parts = sys.argv[1:]
names = ("RESHARD_BUCKETS", "AWS_ENDPOINT_URL", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_REGION", "AWS_ALLOW_HTTP")
environment = {name: os.environ[name] for name in names if name in os.environ}
with RayExecutor(address, environment=environment) as executor:
    print("begin", flush=True)
    reshard.convert(source, target, layout=json.loads(layout), executor=executor, parts=int(parts), max_memory="256MiB", workers=2)
"""


def main() -> None:
    """Runs all trials; ends with an error at the first that fails."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--mib", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--bucket", action="store_true", help="to a bucket instead of a folder")
    asked = parser.parse_args()
    rng = random.Random(asked.seed)  # noqa: S311  no secret
    with tempfile.TemporaryDirectory() as folder, fake_s3() as server, ray_cluster() as cluster:
        import pytest

        with pytest.MonkeyPatch.context() as patch, lend(server, "s3", patch) as bucket:
            source = Path(folder, "source")
            _save(source, asked.mib)
            reshard.convert(source, Path(folder, "alone"), layout=LAYOUT)
            for number in range(asked.runs):
                victim = VICTIMS[number % len(VICTIMS)]
                where = f"{bucket.url}/t{number}" if asked.bucket else str(Path(folder, "t"))
                print(number, victim, _trial(rng, victim, source, where, cluster), flush=True)
                _check(Path(folder), where, bucket if asked.bucket else None)


def _save(path: Path, mib: int) -> None:
    rng = np.random.default_rng(1)
    tree = {f"big_{n:03}": rng.standard_normal((256, 1024)).astype(np.float32) for n in range(mib)}
    reshard.save(path, tree)


def _trial(rng: random.Random, victim: str, source: Path, target: str, cluster: Any) -> str:
    """One run with a victim, and a second one where the first failed; what happened."""
    node = cluster.add_node(**NODE)
    run = _started(source, target, cluster)
    time.sleep(rng.uniform(0.0, 2.5))
    frozen = processes_of(node) if victim == "frozen" else []
    if victim == "worker":
        send(workers(cluster)[:1], signal.SIGKILL)
    elif victim == "node":
        cluster.remove_node(node, allow_graceful=False)
    elif victim == "coordinator":
        run.kill()
    send(frozen, signal.SIGSTOP)
    error = run.communicate(timeout=180)[1]
    said = "went on" if run.returncode == 0 else f"ended with {run.returncode}, and resumed"
    send(frozen, signal.SIGCONT)
    if victim == "frozen":
        time.sleep(3)
    if run.returncode > 0 and victim != "frozen":
        raise SystemExit(error)
    if run.returncode != 0:
        again = _started(source, target, cluster)
        if again.wait(timeout=180) != 0:
            raise SystemExit(again.communicate()[1])
    if victim != "node":
        cluster.remove_node(node, allow_graceful=False)
    until(lambda: not workers(cluster))
    return said


def _started(source: Path, target: str, cluster: Any) -> subprocess.Popen[str]:
    import json

    words = [str(source), target, cluster.address, json.dumps(LAYOUT), str(PARTS)]
    run = subprocess.Popen(
        [sys.executable, "-c", _PROGRAM, *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ.copy(),
    )
    assert run.stdout is not None
    run.stdout.readline()
    return run


def _check(folder: Path, target: str, bucket: Any) -> None:
    """The bytes are those of one host, and nothing else is left; removes a target in a folder."""
    if bucket is not None:
        assert reshard.verify(folder / "alone", target).differences == 0
        names = [entry["path"] for page in bucket.store().list() for entry in page]
        left = [name for name in names if "reshard" in name]
        assert not left, left
        return
    assert _digests(Path(target)) == _digests(folder / "alone")
    names = sorted(path.name for path in folder.iterdir())
    assert names == ["alone", "source", "t"], names
    subprocess.run(["rm", "-r", target], check=True)


def _digests(path: Path) -> dict[str, str]:
    return {
        str(file.relative_to(path)): hashlib.sha256(file.read_bytes()).hexdigest()
        for file in sorted(path.rglob("*"))
        if file.is_file() and file.name != "_CHECKPOINT_METADATA"
    }


if __name__ == "__main__":
    main()
