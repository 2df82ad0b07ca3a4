"""Writeback: finished chunks go to the device while the rest is still written."""

from __future__ import annotations

import ctypes
import os
import threading
from contextlib import suppress
from queue import SimpleQueue
from types import TracebackType

from reshard.storage.local.files import close_after_reading, libc

WRITEBACK_BYTES = 1 << 20
"""Smaller chunks are left to the sync at the end: the device writes them faster together."""

_SYNC_FILE_RANGE_WRITE = 2


class Writeback:
    """Makes the kernel start writing finished chunks, on its own thread; safe from any thread.

    The system call waits while the device's queue is full (18 ms on average, measured), and threads that make
    chunks should not. It is only a hint: the sync at the end makes files durable, reports every error and writes
    the rest, small files included.
    """

    def __init__(self) -> None:
        self._ranges: SimpleQueue[tuple[str, int, int] | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._is_over = False

    def __enter__(self) -> Writeback:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Stops the thread; the sync writes the chunks that it has not started."""
        self._is_over = True
        self._ranges.put(None)
        if self._thread is not None:
            self._thread.join()

    def begin(self, path: str, nbytes: int, offset: int = 0) -> None:
        """Queues ``nbytes`` complete bytes of a file, from ``offset``; does not wait. A URL is passed over."""
        if nbytes < WRITEBACK_BYTES or "://" in path:
            return
        self._ranges.put((path, nbytes, offset))
        with self._lock:
            if self._thread is None:
                self._start()

    def _start(self) -> None:
        """Starts the thread at the first chunk: worker processes were forked before, without this thread."""
        thread = threading.Thread(target=self._run, name="reshard.writeback", daemon=True)
        with suppress(RuntimeError):  # the system allows no more threads
            thread.start()
            self._thread = thread

    def _run(self) -> None:
        while (found := self._ranges.get()) is not None and not self._is_over:
            _begin(*found)


def _begin(path: str, nbytes: int, offset: int) -> None:
    with suppress(OSError):
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            first, count = ctypes.c_int64(offset), ctypes.c_int64(nbytes)
            libc().sync_file_range(fd, first, count, _SYNC_FILE_RANGE_WRITE)
        finally:
            close_after_reading(fd)
