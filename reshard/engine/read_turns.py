"""Turns of reading: half of the tasks that move through buckets read while the others write.

A link carries its full bandwidth in each direction at once. Tasks that begin together and share it fairly also end their reads
together: all of them read while nothing is sent, and then all of them write while nothing is received. So at most half of the
tasks that read much read at the same time.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from threading import Condition

from reshard.storage.location import is_in_bucket

TURN_BYTES = 4 << 20
"""Reads below this size are latency-bound and are not throttled."""


class ReadTurns:
    """Counts the tasks of a process that take turns, and those of them that read."""

    def __init__(self) -> None:
        self._changed = Condition()
        self._tasks = 0
        self._reading = 0

    @contextmanager
    def task(self) -> Iterator[ReadTurns]:
        """Counts a task that reads and then writes in the block."""
        self._count(1)
        try:
            yield self
        finally:
            self._count(-1)

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Counts a task that reads in the block; waits before it while half of all tasks read."""
        with self._changed:
            self._changed.wait_for(lambda: self._reading < (self._tasks + 1) // 2)
            self._reading += 1
        try:
            yield
        finally:
            with self._changed:
                self._reading -= 1
                self._changed.notify_all()

    def _count(self, change: int) -> None:
        with self._changed:
            self._tasks += change
            self._changed.notify_all()


_turns = ReadTurns()


def turns_between(nbytes: int, roots: Iterable[str]) -> AbstractContextManager[ReadTurns | None]:
    """A context for a task: the turns that it takes to read ``nbytes`` from a bucket; None if it takes none.

    ``roots``: the folders below which it writes.
    """
    if nbytes < TURN_BYTES or not any(map(is_in_bucket, roots)):
        return nullcontext()
    return _turns.task()


def reading(turns: ReadTurns | None) -> AbstractContextManager[None]:
    """A context for the reading of a task."""
    return nullcontext() if turns is None else turns.reading()


def _forget() -> None:
    global _turns
    _turns = ReadTurns()


os.register_at_fork(after_in_child=_forget)
