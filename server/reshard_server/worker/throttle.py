"""Passes the library's progress on to the server: not too often, with rate and time left."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from reshard import Progress

TELL_SECONDS = 0.5
NAME_CHARACTERS = 500
"""Of a tensor's name; a line must fit the atomic write of a pipe."""


@dataclass
class Pace:
    """Told after each task; tells a document at most twice a second, and whenever the stage changes."""

    tell: Callable[[dict[str, Any]], None]
    clock: Callable[[], float] = time.monotonic
    _began: tuple[float, int] | None = None
    _told: float = float("-inf")
    _stage: str = ""
    _resumed: int = 0

    def __call__(self, progress: Progress) -> None:
        now = self.clock()
        if self._began is None:
            self._began = now, progress.moved_bytes
        self._resumed = max(self._resumed, progress.resumed_bytes)
        if now - self._told >= TELL_SECONDS or progress.stage != self._stage:
            self._told, self._stage = now, progress.stage
            self.tell(self._document(progress, now))

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
        """Of this attempt: what an earlier one moved counts for nothing."""
        began, first = self._began or (now, moved)
        seconds, done = now - began, moved - first
        return done / seconds if seconds > 0 and done > 0 else None
