"""The bytes that a run moves over time, in at most sixty intervals."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

MOST_INTERVALS = 60
"""A point for every ten pixels of the picture on the page, and less than 1 KiB of each report."""

FIRST_SECONDS = 0.5
"""The first length of an interval; progress is reported as often."""


@dataclass
class MovedOverTime:
    """Intervals of equal length since the first call, each with its bytes; when there are too many, two become one of twice the length."""

    wall_clock: Callable[[], float] = time.time
    _began_at: float = 0.0
    _seconds: float = FIRST_SECONDS
    _intervals: list[float] = field(default_factory=list)
    _first: tuple[float, int] | None = None
    _at: float = 0.0
    _moved: int = 0

    def add(self, now: float, moved: int) -> None:
        """Counts what was moved since the last call: a task that took long moved its bytes evenly.

        Args:
            now: by the clock of the run.
            moved: bytes in all, with those of earlier attempts.
        """
        if self._first is None:
            self._first, self._moved = (now, moved), moved
            self._began_at = self.wall_clock()
        at = now - self._first[0]
        while at >= MOST_INTERVALS * self._seconds:
            self._halve()
        span, new = at - self._at, max(0, moved - self._moved)
        last = int(at / self._seconds)
        self._intervals += [0.0] * (last + 1 - len(self._intervals))
        for number in range(int(self._at / self._seconds), last + 1):
            begin, end = number * self._seconds, (number + 1) * self._seconds
            overlap = min(at, end) - max(self._at, begin)
            # Two calls at one time share no interval: all bytes belong to it.
            self._intervals[number] += new * (overlap / span if span > 0 else 1.0)
        self._at, self._moved = at, max(moved, self._moved)

    def _halve(self) -> None:
        self._intervals += [0.0] * (len(self._intervals) % 2)
        self._intervals = [a + b for a, b in zip(self._intervals[::2], self._intervals[1::2])]  # noqa: B905  of equal length
        self._seconds *= 2

    def document(self) -> dict[str, Any]:
        """The intervals as ``schemas.conversion.OverTime`` describes them."""
        return {
            "began_at": self._began_at,
            "seconds": round(self._at, 3),
            "interval_seconds": self._seconds,
            "moved_bytes": [round(moved) for moved in self._intervals],
        }
