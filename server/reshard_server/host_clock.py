"""A monotonic clock that all processes of a host share; it also counts while the host sleeps."""

from __future__ import annotations

import time


def host_seconds() -> float:
    """Seconds since the host booted."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)
