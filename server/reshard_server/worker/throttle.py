"""Passes the library's progress on to the server, at most twice a second, with the rate and the time left."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from reshard import Progress

REPORT_SECONDS = 0.5
NAME_CHARACTERS = 500
"""Length limit of a tensor's name: a message must fit into one atomic write of a pipe."""


@dataclass
class ProgressThrottle:
    """Called after each task; reports at most twice a second, whenever the stage changes, and when all is moved."""

    report: Callable[[dict[str, Any]], None]
    clock: Callable[[], float] = time.monotonic
    _first: tuple[float, int] | None = None
    _reported_at: float = float("-inf")
    _stage: str = ""
    _resumed: int = 0
    _is_whole: bool = False

    def __call__(self, progress: Progress) -> None:
        now = self.clock()
        if self._first is None:
            self._first = now, progress.moved_bytes
        self._resumed = max(self._resumed, progress.resumed_bytes)
        was_whole = self._is_whole
        self._is_whole = progress.moved_bytes >= progress.total_bytes
        is_news = progress.stage != self._stage or (self._is_whole and not was_whole)
        if is_news or now - self._reported_at >= REPORT_SECONDS:
            self._reported_at, self._stage = now, progress.stage
            self.report(self._document(progress, now))

    def _document(self, progress: Progress, now: float) -> dict[str, Any]:
        moved, total = progress.moved_bytes, progress.total_bytes
        rate = self._rate(moved, now)
        return {
            "stage": progress.stage,
            "moved_bytes": moved,
            "total_bytes": total,
            "resumed_bytes": self._resumed,
            "tasks_done": progress.tasks_done,
            "tasks": progress.tasks,
            "tensor": progress.tensor[:NAME_CHARACTERS],
            "bytes_per_second": rate,
            "seconds_left": (total - moved) / rate if rate else None,
        }

    def _rate(self, moved: int, now: float) -> float | None:
        """The rate of this attempt; bytes that an earlier attempt moved do not count."""
        began_at, first_moved = self._first or (now, moved)
        seconds, done = now - began_at, moved - first_moved
        return done / seconds if seconds > 0 and done > 0 else None
