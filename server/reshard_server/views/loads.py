"""Loads: who reads which view from this process, at what rate. Safe from any thread."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

SECONDS = 10
"""The time over which a rate is taken."""


class Loads:
    """The open streams of views, and the bytes that were handed over within the last ten seconds, by view and token."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._lock = clock, threading.Lock()
        self._open = Counter[tuple[str, str]]()
        self._sent = Counter[tuple[str, str, int]]()

    @contextmanager
    def stream(self, view: str, token: str) -> Iterator[Callable[[int], None]]:
        """Counts a stream as open; gives the function that counts its bytes."""
        with self._lock:
            self._open[view, token] += 1
        try:
            yield partial(self._add, view, token)
        finally:
            with self._lock:
                self._open[view, token] -= 1
                self._open = +self._open  # those above zero

    def of(self, view: str) -> list[tuple[str, int, float]]:
        """The tokens that read a view, with the number of their streams and their bytes per second."""
        with self._lock:
            self._forget()
            sent = Counter[str]()
            for (name, token, _), nbytes in self._sent.items():
                sent[token] += nbytes if name == view else 0
            tokens = {token for token in sent if sent[token]}
            tokens |= {token for name, token in self._open if name == view}
            return [(t, self._open[view, t], sent[t] / SECONDS) for t in sorted(tokens)]

    def _add(self, view: str, token: str, nbytes: int) -> None:
        with self._lock:
            self._forget()
            self._sent[view, token, int(self._clock())] += nbytes

    def _forget(self) -> None:
        oldest = int(self._clock()) - SECONDS
        if any(at <= oldest for _, _, at in self._sent):
            self._sent = Counter({key: n for key, n in self._sent.items() if key[2] > oldest})
