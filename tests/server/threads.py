"""Threads of a test: what goes wrong in one of them is what the test shows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")

PATIENCE_SECONDS = 300.0


def run_together(calls: Sequence[Callable[[], T]]) -> list[T]:
    """What these calls return, in their order; all run at the same time. Raises the error of the first that failed."""
    with ThreadPoolExecutor(len(calls)) as pool:
        running = [pool.submit(call) for call in calls]
        return [one.result(PATIENCE_SECONDS) for one in running]
