"""One disturbed run and its checks: a clear error or the right result, and nothing stays open."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from reshard.errors import ReshardError
from tests.robustness.faults.seam import Hook, at_the_seam

LIMIT_S = 60
CLOSING_S = 60.0
REMEDIES = (
    "run the same command again", "check it", "check the", "check that", "grant", "choose", "raise the limit", "restore", "free space", "run again",
)  # fmt: skip


@contextmanager
def within_time() -> Iterator[None]:
    """A run that hangs is an error: AssertionError after ``LIMIT_S`` seconds; the test's own limit stands again after."""

    def too_long(_: int, frame: FrameType | None) -> None:
        where = f"{frame.f_code.co_filename}:{frame.f_lineno}" if frame else "nowhere"
        raise AssertionError(f"hangs at {where}")

    before = signal.signal(signal.SIGALRM, too_long)
    left, _ = signal.setitimer(signal.ITIMER_REAL, LIMIT_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        signal.setitimer(signal.ITIMER_REAL, left)


@contextmanager
def nothing_stays_open() -> Iterator[None]:
    """The same descriptors and threads afterwards; TensorStore closes its files in threads of its own, a moment later."""
    threads, descriptors = set(threading.enumerate()), _descriptors()
    yield
    assert not (extra := set(threading.enumerate()) - threads), extra
    until = time.monotonic() + CLOSING_S
    while _descriptors() - descriptors and time.monotonic() < until:
        time.sleep(0.01)
    assert not (extra := _descriptors() - descriptors), extra


def _descriptors() -> set[tuple[str, str]]:
    found = set()
    for fd in Path("/proc/self/fd").iterdir():
        try:
            found.add((fd.name, str(fd.readlink())))
        except FileNotFoundError:  # the one with which they were listed
            continue
    return found


def attempt(root: Path, hook: Hook, act: Callable[[], object]) -> ReshardError | None:
    """Acts with ``hook`` at the seam; the error that came of it, or None. Other errors are raised."""
    with within_time(), nothing_stays_open():
        try:
            with at_the_seam(root, hook):
                act()
        except ReshardError as error:
            return error
    return None


def is_clear(error: ReshardError, reason: str, path: str) -> bool:
    """Whether the message says where, why and what to do."""
    text = str(error)
    return path in text and reason in text and any(remedy in text for remedy in REMEDIES)
