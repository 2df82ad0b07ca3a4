"""Emulators that others made, each a process on a free port of 127.0.0.1: moto for S3, Azurite for Azure."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from tests.ports import kept_port

ORACLES = Path(__file__).parents[2] / ".oracles"
PYTHON = ORACLES / "cloud/bin/python"
AZURITE = ORACLES / "azurite/node_modules/azurite/dist/src/blob/main.js"
NODE = Path(sys.executable).with_name("node")
SECONDS = 120


@contextlib.contextmanager
def moto() -> Iterator[str]:
    """The address of a running moto."""
    assert PYTHON.exists(), f"{PYTHON} is missing: run make oracles"
    with kept_port() as port:
        command = [str(PYTHON), "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
        with running(command, port):
            yield f"http://127.0.0.1:{port}"


@contextlib.contextmanager
def azurite() -> Iterator[str]:
    """The address of a running Azurite, which keeps everything in memory."""
    assert AZURITE.exists(), f"{AZURITE} is missing: run make oracles"
    with kept_port() as port:
        command = [
            str(NODE), str(AZURITE), "--blobHost", "127.0.0.1", "--blobPort", str(port), "--silent",
            "--inMemoryPersistence", "--skipApiVersionCheck", "--disableTelemetry",
        ]  # fmt: skip
        with running(command, port):
            yield f"http://127.0.0.1:{port}"


@contextlib.contextmanager
def running(command: list[str], port: int) -> Iterator[None]:
    """Runs a server from when it listens to the end of the block.

    It has a process group of its own, which is ended: Node comes in a program of Python that starts it as its child.
    """
    process = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    )
    try:
        deadline = time.monotonic() + SECONDS
        while not listens(port):
            assert process.poll() is None, f"{command} ended with {process.returncode}"
            assert time.monotonic() < deadline, f"{command} did not listen within {SECONDS} s"
            time.sleep(0.05)
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        process.wait(SECONDS)


def listens(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
        return True
    return False
