"""Slots for long work: a number in all, of which one token may take some."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass, field

from reshard_server.errors.problems import TOO_MANY, ProblemError


@dataclass(eq=False)
class Places:
    """Places of one kind; used from one event loop.

    Waiters get a slot in the order of asking; those whose token has all of its slots are skipped.
    """

    at_most: int
    per_token: int
    _taken: Counter[str] = field(default_factory=Counter)
    _waiting: list[tuple[str, asyncio.Future[None]]] = field(default_factory=list)

    @property
    def taken(self) -> int:
        """How many are taken."""
        return self._taken.total()

    def of(self, token: str) -> int:
        """How many a token has taken."""
        return self._taken[token]

    def is_full(self, token: str) -> bool:
        """Whether this token has as many as it may, however many others are free."""
        return self._taken[token] >= self.per_token

    def take_now(self, token: str) -> bool:
        """Takes one where the token may; whether it did."""
        if self.is_full(token) or self.taken >= self.at_most:
            return False
        self._taken[token] += 1
        return True

    async def take(self, token: str) -> None:
        """Waits for one, and takes it."""
        if self.take_now(token):
            return
        mine = (token, asyncio.get_running_loop().create_future())
        self._waiting.append(mine)
        try:
            await mine[1]
        except asyncio.CancelledError:
            if mine in self._waiting:
                self._waiting.remove(mine)
            else:
                self.give_back(token)  # it was given at this very moment
            raise

    def give_back(self, token: str) -> None:
        """Gives one back, to the next waiter."""
        self._taken[token] -= 1
        if not self._taken[token]:
            del self._taken[token]
        for mine in list(self._waiting):
            if self.take_now(mine[0]):
                self._waiting.remove(mine)
                mine[1].set_result(None)


def too_many(
    setting: str, what: str, places: Places, token: str, remedy: str, seconds: int
) -> ProblemError:
    """The refusal, which says whose limit it is.

    Args:
        setting: name of the limit of all; that of a token ends with ``_per_token``.
    """
    if places.is_full(token):
        said = (
            f"{places.per_token} {what} by the token {token!r}, as many as one token may have at this server (its setting "
            f"{setting}_per_token)"
        )
    else:
        said = f"{places.at_most} {what}, as many as this server allows for all tokens together (its setting {setting})"
    return ProblemError(
        TOO_MANY, f"{said}; {remedy}", remedy=remedy, headers={"Retry-After": str(seconds)}
    )
