"""Draining: the server accepts no new work, and open requests finish."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from reshard_server.errors.problems import UNAVAILABLE, ProblemError

RETRY_AFTER = "5"


@dataclass(eq=False)
class Drain:
    """The end of the server, and the number of open requests; used from its event loop.

    Attributes:
        started: set when a signal ends the server; open streams wait for this, too.
    """

    started: asyncio.Event = field(default_factory=asyncio.Event)
    open_requests: int = 0

    def refuse_new(self) -> None:
        """Raises ProblemError if the server is ending."""
        if self.started.is_set():
            raise ProblemError(
                UNAVAILABLE,
                "this server is ending and accepts no new work; send the request again, to another replica or once it is "
                "back",
                headers={"Retry-After": RETRY_AFTER},
            )
