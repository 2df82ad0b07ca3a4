"""Failing calls: which one, with what reason, once or from then on."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from tests.robustness.faults.seam import CHANGES, LIMITED, READS, Call, Go

SYNCS = frozenset(("fsync", "fdatasync", "syncfs"))
LOOKS = frozenset(("stat", "lstat", "scandir", "listdir", "fstat", "open"))


@dataclass(frozen=True, slots=True)
class Fault:
    """A reason for which calls fail.

    Attributes:
        kinds: the calls that the system may refuse for that reason.
        lasts: whether every later call of the kinds fails too, until the cause is gone.
    """

    reason: int
    kinds: frozenset[str]
    lasts: bool

    def __str__(self) -> str:
        return f"{errno.errorcode[self.reason]}{' from then on' if self.lasts else ''}"


FULL_DISK = Fault(errno.ENOSPC, CHANGES | SYNCS, lasts=True)
QUOTA = Fault(errno.EDQUOT, CHANGES | SYNCS, lasts=True)
WRITE_ERROR = Fault(errno.EIO, CHANGES | SYNCS | {"close"}, lasts=False)
READ_ONLY = Fault(errno.EROFS, CHANGES, lasts=True)
DENIED = Fault(errno.EACCES, frozenset(("create", "mkdir", "open", "rename", "exchange", "scandir")), lasts=True)  # fmt: skip
READ_ERROR = Fault(errno.EIO, READS, lasts=False)
STALE = Fault(errno.ESTALE, READS | CHANGES | SYNCS, lasts=True)
TOO_MANY_FILES = Fault(errno.EMFILE, frozenset(("open", "create", "scandir")), lasts=False)


@dataclass(slots=True)
class Failing:
    """A hook: the calls that ``fault`` is about fail from the ``nth`` (counted from 0) on.

    Attributes:
        failed: the calls that did.
    """

    fault: Fault
    nth: int
    failed: list[Call] = field(default_factory=list)
    _seen: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __call__(self, call: Call, go: Go) -> Any:
        if not self._is_struck(call):
            return go()
        if call.kind == "close":
            go()  # the kernel lets go of a descriptor even where it reports an error
        raise OSError(self.fault.reason, os.strerror(self.fault.reason))

    def _is_struck(self, call: Call) -> bool:
        if call.kind not in self.fault.kinds:
            return False
        with self._lock:
            number, self._seen = self._seen, self._seen + 1
            struck = number == self.nth or (self.fault.lasts and number > self.nth)
            if struck:
                self.failed.append(call)
            return struck


@dataclass(slots=True)
class Counting:
    """A hook that lets everything pass and remembers it."""

    calls: list[Call] = field(default_factory=list)

    def __call__(self, call: Call, go: Go) -> Any:
        self.calls.append(call)
        return go()


def short(call: Call, go: Go) -> Any:
    """A hook: every read and write does only a part of what it was asked for."""
    if call.kind not in LIMITED:
        return go()
    return go(limit=997)


def struck(calls: list[Call], fault: Fault, most: int) -> Iterator[int]:
    """Numbers of calls for ``Failing``: each one, or, beyond ``most``, an even sample of every call site."""
    sites: dict[tuple[str, tuple[str, ...]], list[int]] = {}
    concerned = [call for call in calls if call.kind in fault.kinds]
    for number, call in enumerate(concerned):
        sites.setdefault((call.kind, call.site), []).append(number)
    each = max(2, most // max(1, len(sites)))
    for numbers in sites.values():
        yield from _spread(numbers, len(numbers) if len(concerned) <= most else each)


def _spread(numbers: list[int], count: int) -> list[int]:
    """First, last and some between them."""
    if len(numbers) <= count:
        return numbers
    step = (len(numbers) - 1) / (count - 1)
    return [numbers[round(i * step)] for i in range(count)]


Act = Callable[[], object]
