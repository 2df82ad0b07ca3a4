"""Aligned buffers that tasks reuse: touching new pages costs more than copying into them."""

from __future__ import annotations

import mmap
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Bytes = npt.NDArray[np.uint8]

ALIGNMENT = 64
"""Bytes of a cache line on x86 and ARM, so that no two buffers share one."""

_PRIVATE = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
"""Python's default is memory that is shared with forked processes; it also takes a sixth longer to fill (measured)."""

MAPPED_BYTES = 1 << 20
"""Buffers of at least this size are mapped: a system call costs nothing beside filling them."""


def aligned(nbytes: int) -> Bytes:
    """Memory that is not cleared, and begins at a multiple of ALIGNMENT.

    A large allocation begins 16 bytes into a page. Reads of the kernel to such a place (any of the first 31
    bytes but the very first) take four times as long on processors that copy by ``rep movsb``.
    """
    import numpy as np

    raw = np.empty(nbytes + ALIGNMENT, np.uint8)
    start = -int(raw.__array_interface__["data"][0]) % ALIGNMENT
    return raw[start : start + nbytes]


def aligned_empty(nbytes: int, *, is_reused: bool = False) -> Bytes:
    """Bytes of any value, aligned as jax wants them to adopt memory instead of copying it.

    Large buffers come in the system's default pages. numpy asks for huge pages, which a
    virtual machine has often handed back to its host: filling those took twice the system time. They pay
    where memory ``is_reused``: turned copies touch many pages at once.
    """
    import numpy as np

    if nbytes < MAPPED_BYTES:
        return aligned(nbytes)
    try:
        mapped = mmap.mmap(-1, nbytes, flags=_PRIVATE)
    except (OSError, OverflowError) as error:
        raise MemoryError(error) from error
    if is_reused and hasattr(mmap, "MADV_HUGEPAGE"):  # a wish, and Linux's alone
        with suppress(OSError):
            mapped.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(mapped, np.uint8)


class Arena:
    """One allocation from which a task takes all its buffers.

    It is mapped, since malloc keeps up to 64 MiB of what is freed, and so a process with arenas of several sizes took more than allowed.
    """

    def __init__(self, nbytes: int) -> None:
        self.memory = aligned_empty(nbytes, is_reused=True)
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
    """Arenas that wait for the next task, so that as little memory as possible is touched for the first time.

    All arenas, and what the tasks that hold one take besides, are never more than ``max_bytes``,
    unless a single task needs more: waiting arenas are freed to make room.
    """

    def __init__(self, max_bytes: int, workers: int) -> None:
        """``workers``: the largest number of tasks that have an arena at the same time."""
        self._max_bytes = max_bytes
        self._share = max_bytes // workers
        self._free: list[Arena] = []
        self._lent: dict[Arena, int] = {}
        self._released = threading.Condition()

    def __reduce__(self) -> tuple[type[ArenaPool], tuple[int, int]]:
        """Pickles a pool of one worker's share: each worker of ``Processes`` has its own, since processes share no memory."""
        return ArenaPool, (self._share, 1)

    def acquire(self, nbytes: int, beside_bytes: int = 0) -> Arena:
        """An arena of at least ``nbytes``: a waiting one, or a new one as soon as there is room for it.

        ``beside_bytes`` is what its task takes besides (decoders, encoders) until it is released.
        """
        with self._released:
            arena = self._fitting(nbytes, beside_bytes)
            if arena is None or not self._make_room(arena.nbytes + beside_bytes):
                arena = None  # the found arena is freed before the next is made
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
        """The smallest waiting arena that is large enough and not much too large; None if there is none."""
        most = max(nbytes + nbytes // 4, self._share - beside_bytes)
        fitting = [arena for arena in self._free if nbytes <= arena.nbytes <= most]
        if not fitting:
            return None
        found = min(fitting, key=lambda arena: arena.nbytes)
        self._free.remove(found)
        return found

    def _make_room(self, nbytes: int) -> bool:
        """Frees waiting arenas until ``nbytes`` more are within the limit, or none waits; returns whether the bytes fit."""
        while self._free and self._all_bytes() + nbytes > self._max_bytes:
            self._free.pop(0)
        return self._all_bytes() + nbytes <= self._max_bytes

    def _all_bytes(self) -> int:
        return sum(self._lent.values()) + sum(a.nbytes for a in self._free)


@contextmanager
def lent(pool: ArenaPool | None, nbytes: int, task_bytes: int) -> Iterator[Arena]:
    """An arena of ``nbytes`` for a task that takes ``task_bytes`` in all; a new one without a pool."""
    if pool is None:
        yield Arena(nbytes)
        return
    arena = pool.acquire(nbytes, task_bytes - nbytes)
    try:
        yield arena
    finally:
        pool.release(arena)
