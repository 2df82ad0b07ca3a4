"""A server that a test starts ends with the test, also where it is the child of the program that was started."""

from __future__ import annotations

import sys
import time

from tests.emulators.processes import listens, running
from tests.ports import kept_port

WRAPPER = "import subprocess, sys; subprocess.run([sys.executable, *sys.argv[1:]])"


def test_the_child_of_a_wrapper_ends_too() -> None:
    with kept_port() as port:
        server = ["-m", "http.server", str(port), "--bind", "127.0.0.1"]
        with running([sys.executable, "-c", WRAPPER, *server], port):
            assert listens(port)
        deadline = time.monotonic() + 60
        while listens(port):
            assert time.monotonic() < deadline
            time.sleep(0.02)
