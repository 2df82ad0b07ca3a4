"""The threads of a process that wait for answers of buckets."""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor

REQUESTS_AT_ONCE = 32
"""For large reads and for reading ahead; threads that read small ranges make their requests themselves."""

_threads: ThreadPoolExecutor | None = None
_lock = threading.Lock()


def request_threads() -> ThreadPoolExecutor:
    """Made on first use in each process. What runs here must not wait for others that do."""
    global _threads
    with _lock:
        if _threads is None:
            _threads = ThreadPoolExecutor(REQUESTS_AT_ONCE, "reshard.requests")
        return _threads


def _forget() -> None:
    global _threads, _lock
    _threads, _lock = None, threading.Lock()


os.register_at_fork(after_in_child=_forget)
