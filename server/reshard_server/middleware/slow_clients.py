"""Limits how long a connection may take for its next step."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(eq=False)
class Patience:
    """A time limit that is set and lifted; where it runs out, something is done once."""

    loop: asyncio.AbstractEventLoop
    seconds: float
    at_end: Callable[[], None]
    _timer: asyncio.TimerHandle | None = None

    def begin(self) -> None:
        """Counts from now, unless it counts already."""
        if self._timer is None:
            self._timer = self.loop.call_later(self.seconds, self._end)

    def lift(self) -> None:
        """Counts no more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _end(self) -> None:
        self._timer = None
        self.at_end()
