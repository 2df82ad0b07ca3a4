"""The coordinator's processor time, by step, and the virtual time in which simulated hosts work.

Virtual time passes while the coordinator computes, by its real processor time, and while it waits for a host. What the
simulation itself computes does not count.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

SIMULATION = "simulation"
REST = "scheduling"


class Coordinator:
    """Counts the processor time of this thread from now on; what is in no step is ``scheduling``."""

    def __init__(self) -> None:
        self._cpu_s: dict[str, float] = {}
        self._waited_s = 0.0
        self._step = REST
        self._since = time.thread_time()

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        """The block belongs to a step. Steps may lie within each other: the inner one counts."""
        before = self._begin(name)
        try:
            yield
        finally:
            self._begin(before)

    def cpu_s(self) -> dict[str, float]:
        """Seconds of processor time by step, without the simulation's own."""
        self._begin(self._step)
        return {name: spent for name, spent in self._cpu_s.items() if name != SIMULATION}

    def now_s(self) -> float:
        """The virtual time."""
        return sum(self.cpu_s().values()) + self._waited_s

    def wait_until(self, at_s: float) -> None:
        """Virtual time goes on to a moment, unless that is past."""
        self._waited_s += max(0.0, at_s - self.now_s())

    def _begin(self, name: str) -> str:
        """Counts what was spent since the last call; returns the step that it was."""
        now = time.thread_time()
        self._cpu_s[self._step] = self._cpu_s.get(self._step, 0.0) + now - self._since
        self._since = now
        before, self._step = self._step, name
        return before
