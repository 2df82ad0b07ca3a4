"""A server that runs while a test reads a page."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.server.forked import Forked
from tests.server.live import environment, wait_for_address


@contextmanager
def serving(words: list[str], folder: Path, log: Path) -> Iterator[str]:
    """The URL of a server that was started with these words in a folder, but on a free port."""
    log.touch()
    process = Forked(["reshard", *words, "--port", "0"], environment(), folder, log, log)
    try:
        yield wait_for_address(process, log)
    finally:
        process.terminate()
        assert process.wait(60) == 0, log.read_text()
