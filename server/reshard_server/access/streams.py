"""How many streams may be open at once."""

from __future__ import annotations

from dataclasses import dataclass

from reshard_server.problems import TOO_MANY, ProblemError


@dataclass(eq=False)
class Streams:
    """The streams of this process; used from its event loop only."""

    at_most: int
    open: int = 0

    def take(self) -> None:
        """Opens one; ProblemError where there are as many as may be. ``give_back`` closes it."""
        if self.open >= self.at_most:
            raise ProblemError(
                TOO_MANY,
                f"{self.at_most} streams are open, as many as this server allows; try again later, or poll with "
                "If-None-Match",
                headers={"Retry-After": "5"},
            )
        self.open += 1

    def give_back(self) -> None:
        self.open -= 1
