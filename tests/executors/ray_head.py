"""A Ray cluster of this host alone, as ``ray start`` begins it, beside any others that run here."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

START_S = 120.0


@contextmanager
def ray_head(cpus: int = 8) -> Iterator[str]:
    """Its address. It has a folder of its own, so that its address is not the ``auto`` of another one."""
    folder = Path(tempfile.mkdtemp(prefix="ray-"))  # sockets need a short path
    command = [
        Path(sys.executable).with_name("ray"), "start", "--head", "--block", "--port=0", f"--num-cpus={cpus}",
        f"--memory={2 << 30}", f"--object-store-memory={128 << 20}", "--include-dashboard=false", f"--temp-dir={folder}",
        "--node-ip-address=127.0.0.1", "--disable-usage-stats", "--min-worker-port=0", "--max-worker-port=0",
    ]  # fmt: skip
    log = folder / "log"
    with log.open("wb") as stream:
        process = subprocess.Popen(
            list(map(str, command)), stdout=stream, stderr=stream, process_group=0
        )
    try:
        yield _address(folder, process, log)
    finally:
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(60)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        shutil.rmtree(folder, ignore_errors=True)


def _address(folder: Path, process: subprocess.Popen[bytes], log: Path) -> str:
    deadline = time.monotonic() + START_S
    while "Ray runtime started" not in log.read_text():
        assert process.poll() is None, log.read_text()
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.05)
    return (folder / "ray_current_cluster").read_text()
