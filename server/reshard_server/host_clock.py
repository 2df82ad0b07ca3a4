"""A clock that every process of this host shares, that nobody sets, and that goes on while the host sleeps."""

from __future__ import annotations

import time


def host_seconds() -> float:
    """Seconds since the host was started."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)
