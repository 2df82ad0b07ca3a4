"""InFlight: the tasks that our threads are running, so that an interrupt leaves none behind."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import CancelledError
from threading import Condition
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")


class InFlight:
    """Counts tasks while they run.

    Ctrl-C may reach ``ThreadPoolExecutor.submit`` after it started a thread and before it noted it. Its
    shutdown does not wait for such a thread, nor do we hold the future of what it runs.
    """

    def __init__(self) -> None:
        self._changed = Condition()
        self._running = 0
        self._ended = False

    def run(self, work: Callable[[T], R], task: T) -> R:
        """``work(task)``; CancelledError once this has ended."""
        with self._changed:
            if self._ended:
                raise CancelledError
            self._running += 1
        try:
            return work(task)
        finally:
            with self._changed:
                self._running -= 1
                self._changed.notify_all()

    def end(self) -> None:
        """Lets no further task begin, and waits for those that have."""
        with self._changed:
            self._ended = True
            self._changed.wait_for(lambda: not self._running)
