"""A clock that all processes of a host share, that nobody sets, and that runs while the host sleeps."""

from __future__ import annotations

import time


def host_seconds() -> float:
    """Seconds since the host was started."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)
