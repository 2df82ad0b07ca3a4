"""Buffers that are reused: fresh pages cost more than the copy into them."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Bytes = npt.NDArray[np.uint8]

ALIGNMENT = 64


def aligned(nbytes: int) -> Bytes:
    """Memory that is not cleared, and begins at a multiple of ALIGNMENT.

    A large allocation begins 16 bytes into a page. What the kernel reads to such a place (its first 31
    bytes but for the very first) takes four times as long on processors that copy by ``rep movsb``.
    """
    import numpy as np

    raw = np.empty(nbytes + ALIGNMENT, np.uint8)
    start = -int(raw.__array_interface__["data"][0]) % ALIGNMENT
    return raw[start : start + nbytes]


class Arena:
    """One allocation from which a task takes all its buffers."""

    def __init__(self, nbytes: int) -> None:
        self.memory = aligned(nbytes)
        self._used = 0

    @property
    def nbytes(self) -> int:
        return self.memory.nbytes

    def take(self, nbytes: int) -> Bytes:
        """The next ``nbytes``, not cleared, aligned for any element type."""
        start = -(-self._used // ALIGNMENT) * ALIGNMENT
        self._used = start + nbytes
        if self._used > self.nbytes:
            raise MemoryError(f"a task took {self._used} bytes of an arena of {self.nbytes}")
        return self.memory[start : self._used]

    def reset(self) -> None:
        self._used = 0


class ArenaPool:
    """Arenas that wait for the next task, so that as little memory as can be is filled for the first time.

    All of them, and what the tasks that have one take besides, are never more than ``max_bytes``,
    unless a single task needs more: what waits makes room.
    """

    def __init__(self, max_bytes: int, workers: int) -> None:
        """``workers``: how many tasks at most have an arena at the same time."""
        self._max_bytes = max_bytes
        self._share = max_bytes // workers
        self._free: list[Arena] = []
        self._lent: dict[Arena, int] = {}
        self._released = threading.Condition()

    def acquire(self, nbytes: int, beside_bytes: int = 0) -> Arena:
        """An arena of at least ``nbytes``: one that waits, or a new one as soon as there is room for it.

        ``beside_bytes`` is what its task takes besides (decoders, encoders) until it is released.
        """
        with self._released:
            arena = self._fitting(nbytes, beside_bytes)
            if arena is None or not self._make_room(arena.nbytes + beside_bytes):
                arena = None  # what was found is let go before the next is made
                need = nbytes + beside_bytes
                self._released.wait_for(lambda: self._make_room(need) or not self._lent)
                arena = Arena(nbytes)
            self._lent[arena] = arena.nbytes + beside_bytes
        arena.reset()
        return arena

    def release(self, arena: Arena) -> None:
        with self._released:
            del self._lent[arena]
            if self._all_bytes() + arena.nbytes <= self._max_bytes:
                self._free.append(arena)
            self._released.notify_all()

    def _fitting(self, nbytes: int, beside_bytes: int) -> Arena | None:
        """The smallest that waits and is large enough, if not larger than any worker may have one."""
        most = max(nbytes + nbytes // 4, self._share - beside_bytes)
        fitting = [arena for arena in self._free if nbytes <= arena.nbytes <= most]
        if not fitting:
            return None
        found = min(fitting, key=lambda arena: arena.nbytes)
        self._free.remove(found)
        return found

    def _make_room(self, nbytes: int) -> bool:
        """Lets go of what waits until ``nbytes`` more are within the limit, or nothing waits."""
        while self._free and self._all_bytes() + nbytes > self._max_bytes:
            self._free.pop(0)
        return self._all_bytes() + nbytes <= self._max_bytes

    def _all_bytes(self) -> int:
        return sum(self._lent.values()) + sum(a.nbytes for a in self._free)
