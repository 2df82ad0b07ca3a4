"""A server that runs while a test reads a page."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.server.live import environment, wait_for_address


@contextmanager
def serving(words: list[str], folder: Path, log: Path) -> Iterator[str]:
    """The URL of a server that was started with these words in a folder, but on a free port."""
    command = [sys.executable, "-m", "reshard", *words, "--port", "0"]
    with log.open("wb") as stream:
        process = subprocess.Popen(
            command, stdout=stream, stderr=stream, cwd=folder, env=environment()
        )
    try:
        yield wait_for_address(process, log)
    finally:
        process.terminate()
        assert process.wait(60) == 0, log.read_text()
