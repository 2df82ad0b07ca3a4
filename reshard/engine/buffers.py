"""Buffers that are reused: fresh pages cost more than the copy into them."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Bytes = npt.NDArray[np.uint8]

ALIGNMENT = 64


class Arena:
    """One allocation from which a task takes all its buffers."""

    def __init__(self, nbytes: int) -> None:
        import numpy as np

        self.memory: Bytes = np.empty(nbytes, np.uint8)
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
    """Arenas that wait for the next task of the same size; never more than ``max_bytes`` in all."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._free: list[Arena] = []
        self._lent_bytes = 0
        self._lock = threading.Lock()

    def acquire(self, nbytes: int) -> Arena:
        """An arena of at least ``nbytes`` and not much more."""
        with self._lock:
            for arena in self._free:
                if nbytes <= arena.nbytes <= nbytes + nbytes // 4:
                    self._free.remove(arena)
                    break
            else:
                while self._free and self._all_bytes() + nbytes > self._max_bytes:
                    self._free.pop(0)
                arena = Arena(nbytes)
            self._lent_bytes += arena.nbytes
        arena.reset()
        return arena

    def release(self, arena: Arena) -> None:
        with self._lock:
            self._lent_bytes -= arena.nbytes
            if self._all_bytes() + arena.nbytes <= self._max_bytes:
                self._free.append(arena)

    def _all_bytes(self) -> int:
        return self._lent_bytes + sum(a.nbytes for a in self._free)
