"""Limits the requests of each caller per minute: a token bucket that fills at a steady rate."""

from __future__ import annotations

import math
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

from reshard_server.errors.problems import TOO_MANY, ProblemError

MOST_CALLERS = 10_000
"""Buckets that are kept; the least recently used one makes room."""


@dataclass(eq=False)
class RateLimits:
    """The request rate of each caller.

    A caller that was silent may send a minute's requests at once, and then at the steady rate.
    """

    per_minute: int
    clock: Callable[[], float] = time.monotonic
    _left: OrderedDict[str, tuple[float, float]] = field(default_factory=OrderedDict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def take(self, caller: str) -> None:
        """Counts one request; ProblemError with ``Retry-After`` if the bucket is empty."""
        with self._lock:
            now = self.clock()
            left, then = self._left.pop(caller, (float(self.per_minute), now))
            left = min(self.per_minute, left + (now - then) * self.per_minute / 60)
            allowed = left >= 1
            self._left[caller] = (left - 1 if allowed else left, now)
            if len(self._left) > MOST_CALLERS:
                self._left.popitem(last=False)
        if not allowed:
            raise self._refused(left)

    def _refused(self, left: float) -> ProblemError:
        seconds = math.ceil((1 - left) * 60 / self.per_minute)
        return ProblemError(
            TOO_MANY,
            f"more than {self.per_minute} requests in a minute; wait {seconds} s, and send fewer requests (events and ETags "
            "save some)",
            headers={"Retry-After": str(seconds)},
        )
