"""A link with latency and limited bandwidth, between a server and its clients."""

from __future__ import annotations

import threading
import time

import msgspec


class Link(msgspec.Struct, frozen=True):
    """Limits of a link; 0 is no limit. Each direction has the whole of ``total_bytes_per_s``."""

    latency_s: float = 0.0
    stream_bytes_per_s: float = 0.0
    total_bytes_per_s: float = 0.0


NO_LIMITS = Link()
WIDE_AREA = Link(0.030, 90e6, 150e6)
"""30 ms, 90 MB/s for each stream and 150 MB/s in all: the link of the benchmarks."""
PIECE_BYTES = 128 << 10


class Clock:
    """When bytes that share a bandwidth may pass."""

    def __init__(self) -> None:
        self._free_at = 0.0
        self._lock = threading.Lock()

    def due(self, nbytes: int, bytes_per_s: float) -> float:
        """The time at which these bytes have passed."""
        if not bytes_per_s:
            return 0.0
        with self._lock:
            self._free_at = max(self._free_at, time.monotonic()) + nbytes / bytes_per_s
            return self._free_at


class Stream:
    """One direction of one connection."""

    def __init__(self, link: Link, total: Clock) -> None:
        self._link = link
        self._own = Clock()
        self._total = total
        self.piece_bytes = PIECE_BYTES if link.stream_bytes_per_s or link.total_bytes_per_s else 0

    def passed(self, nbytes: int) -> None:
        """Waits until these bytes have passed the link."""
        due = max(
            self._own.due(nbytes, self._link.stream_bytes_per_s),
            self._total.due(nbytes, self._link.total_bytes_per_s),
        )
        wait_s = due - time.monotonic()
        if wait_s > 0:
            time.sleep(wait_s)
