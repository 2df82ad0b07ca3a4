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
    """Arenas that wait for the next task of the same size.

    All of them, and what the tasks that have one take besides, are never more than ``max_bytes``,
    unless a single task needs more: what waits makes room.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._free: list[Arena] = []
        self._lent: dict[Arena, int] = {}
        self._lock = threading.Lock()

    def acquire(self, nbytes: int, beside_bytes: int = 0) -> Arena:
        """An arena of at least ``nbytes`` and not much more.

        ``beside_bytes`` is what its task takes besides (decoders, encoders) until it is released.
        """
        with self._lock:
            arena = self._fitting(nbytes)
            if arena is None or not self._make_room(arena.nbytes + beside_bytes):
                arena = None  # what was found is let go before the next is made
                self._make_room(nbytes + beside_bytes)
                arena = Arena(nbytes)
            self._lent[arena] = arena.nbytes + beside_bytes
        arena.reset()
        return arena

    def release(self, arena: Arena) -> None:
        with self._lock:
            del self._lent[arena]
            if self._all_bytes() + arena.nbytes <= self._max_bytes:
                self._free.append(arena)

    def _fitting(self, nbytes: int) -> Arena | None:
        for arena in self._free:
            if nbytes <= arena.nbytes <= nbytes + nbytes // 4:
                self._free.remove(arena)
                return arena
        return None

    def _make_room(self, nbytes: int) -> bool:
        """Lets go of what waits until ``nbytes`` more are within the limit, or nothing waits."""
        while self._free and self._all_bytes() + nbytes > self._max_bytes:
            self._free.pop(0)
        return self._all_bytes() + nbytes <= self._max_bytes

    def _all_bytes(self) -> int:
        return sum(self._lent.values()) + sum(a.nbytes for a in self._free)
