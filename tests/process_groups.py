"""Groups of real processes that jax joins to one job, eight simulated devices in all."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.ports import kept_port

ROOT = Path(__file__).parents[1]
LIMIT_S = 500


def run_group(count: int, program: Sequence[str], *words: str) -> list[str]:
    """What each of ``count`` processes prints; every one must succeed.

    Each runs Python with ``program``, its index, the count, the address of the group and ``words``.
    """
    with kept_port() as port:
        return _run_group(count, f"127.0.0.1:{port}", program, words)


def _run_group(count: int, address: str, program: Sequence[str], words: Sequence[str]) -> list[str]:
    environment = {
        **os.environ,
        "XLA_FLAGS": f"--xla_force_host_platform_device_count={8 // count}",
        "JAX_PLATFORMS": "cpu",
        "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path]),
    }
    started = [
        subprocess.Popen(
            [sys.executable, *program, str(index), str(count), address, *words],
            cwd=ROOT,
            env=environment,
            stdout=subprocess.PIPE,
            text=True,
        )
        for index in range(count)
    ]
    try:
        printed = [process.communicate(timeout=LIMIT_S)[0] for process in started]
    finally:
        for process in started:
            process.kill()
    assert [process.returncode for process in started] == [0] * count, printed
    return printed
