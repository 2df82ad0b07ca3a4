"""Loads: who reads which view from this process, at what rate. Safe from any thread."""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator

from reshard_server.views.byte_stream import Piece
from reshard_server.views.catalogue import ServedView

SECONDS = 10
"""The time over which a rate is taken."""


class Loads:
    """The open streams of views, and the bytes that were handed over within the last ten seconds.

    ``count`` is told of the bytes, too.
    """

    def __init__(self, count: Callable[[int], object], clock: Callable[[], float] = time.monotonic) -> None:  # fmt: skip
        self._count, self._clock, self._lock = count, clock, threading.Lock()
        self._open = Counter[tuple[str, str]]()
        self._sent = deque[tuple[int, Counter[tuple[str, str]]]](maxlen=SECONDS)

    def counted(self, served: ServedView, token: str, pieces: Iterator[Piece]) -> Iterator[Piece]:
        """The pieces of a stream. As long as they are read, the view is held, so that it stays open."""
        key = (served.name, token)
        with self._lock:
            self._open[key] += 1
        try:
            for piece in pieces:
                self._add(key, len(piece))
                yield piece
        finally:
            with self._lock:
                self._open -= Counter([key])

    def of(self, view: str) -> list[tuple[str, int, float]]:
        """The tokens that read a view, with the number of their streams and their bytes per second."""
        with self._lock:
            oldest = int(self._clock()) - SECONDS
            sent = sum((each for at, each in self._sent if at > oldest), Counter[tuple[str, str]]())
            tokens = sorted(token for name, token in {*sent, *self._open} if name == view)
            return [(t, self._open[view, t], sent[view, t] / SECONDS) for t in tokens]

    def _add(self, key: tuple[str, str], nbytes: int) -> None:
        self._count(nbytes)
        with self._lock:
            now = int(self._clock())
            if not self._sent or self._sent[-1][0] != now:
                self._sent.append((now, Counter()))
            self._sent[-1][1][key] += nbytes
