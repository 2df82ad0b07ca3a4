"""One loop for everything that tests wait for."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def until(holds: Callable[[], T], seconds: float = 400, pause: float = 0.02) -> T:
    """The first answer that is true; fails if none is within this time, which is far more than a busy machine takes."""
    deadline = time.monotonic() + seconds
    while not (found := holds()):
        assert time.monotonic() < deadline, "it never held"
        time.sleep(pause)
    return found
