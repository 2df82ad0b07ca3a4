"""The memory of children: of those that convert, and of the processes that they start."""

from __future__ import annotations

import subprocess
import sys

from prometheus_client import generate_latest
from reshard_server.observability.metrics import TEMPLATE_MODULE, Metrics

MIB = 1 << 20
TEMPLATE = """
import subprocess, sys
subprocess.run([sys.executable, "-c", sys.argv[2]])
"""
CHILD = """
import subprocess, sys
own = "import sys; held = bytearray(b'1') * (64 << 20); print(len(held), flush=True); sys.stdin.read()"
held = bytearray(b'1') * (32 << 20)
with subprocess.Popen([sys.executable, "-c", own], stdin=subprocess.PIPE) as process:
    sys.stdin.read()
"""


def told(metrics: Metrics) -> dict[str, float]:
    lines = generate_latest(metrics.registry).decode().splitlines()
    pairs = (line.split() for line in lines if line.startswith("reshard_workers"))
    return {name: float(value) for name, value in pairs}


def test_the_processes_of_a_large_conversion_are_counted_with_its_child() -> None:
    metrics = Metrics()
    before = told(metrics)
    pipe = subprocess.PIPE
    words = [sys.executable, "-c", TEMPLATE, TEMPLATE_MODULE.decode(), CHILD]
    with subprocess.Popen(words, stdin=pipe, stdout=pipe) as child:
        assert child.stdout is not None
        child.stdout.readline()
        found = told(metrics)
        assert child.stdin is not None
        child.stdin.close()
    more = {name: value - before[name] for name, value in found.items()}
    assert more["reshard_workers"] == 1
    assert 96 * MIB < more["reshard_workers_resident_bytes"] < 180 * MIB
