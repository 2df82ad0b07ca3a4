"""A server that a test starts ends with the test, also where it is the child of the program that was started."""

from __future__ import annotations

import sys
import time

from tests.emulators.processes import free_port, listens, running

WRAPPER = "import subprocess, sys; subprocess.run([sys.executable, *sys.argv[1:]])"


def test_the_child_of_a_wrapper_ends_too() -> None:
    port = free_port()
    server = ["-m", "http.server", str(port), "--bind", "127.0.0.1"]
    with running([sys.executable, "-c", WRAPPER, *server], port):
        assert listens(port)
    deadline = time.monotonic() + 20
    while listens(port):
        assert time.monotonic() < deadline
        time.sleep(0.02)
