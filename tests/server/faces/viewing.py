"""``reshard view`` as a process, on a free port, and what it prints."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.server.forked import Forked
from tests.server.live import environment

SECONDS = 120


class Viewing:
    """The process, and what it has printed so far."""

    def __init__(self, folder: Path, log: Path, words: tuple[str, ...]) -> None:
        self._out, self._errors = log / "out", log / "errors"
        typed = ["reshard", "view", *words, "--port", "0"]
        self.process = Forked(typed, environment(), folder, self._out, self._errors)

    def said(self) -> str:
        """Its output on stdout, once clients can connect or it has ended."""
        deadline = time.monotonic() + SECONDS
        while not _text(self._out).endswith("\n"):
            assert time.monotonic() < deadline, self.errors()
            assert self.process.poll() is None, self.errors()
            time.sleep(0.02)
        return _text(self._out)

    def errors(self) -> str:
        return _text(self._errors)

    def end(self, number: int = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return self.process.wait(SECONDS)


def _text(file: Path) -> str:
    return file.read_text() if file.exists() else ""


@contextmanager
def running(folder: Path, *words: str) -> Iterator[Viewing]:
    """The command with these words, typed in a folder."""
    with TemporaryDirectory() as log:
        found = Viewing(folder, Path(log), words)
        try:
            yield found
        finally:
            found.process.kill()
