"""Limits of each caller, requests per minute and slots for long work; and the end of the server, from which it takes no new work.

The rate is that of a token bucket, which fills steadily. Slots have a limit for the server, and a lower one for each
token.
"""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from reshard_server.errors.problems import TOO_MANY, UNAVAILABLE, ProblemError

MOST_CALLERS = 10_000
"""Callers whose rate is kept; the least recently used one makes room."""


@dataclass(eq=False)
class RateLimits:
    """The request rate of each caller.

    A caller that was silent may send a minute's requests at once, and then at the steady rate.
    """

    per_minute: int
    clock: Callable[[], float] = time.monotonic
    _left: OrderedDict[str, tuple[float, float]] = field(default_factory=OrderedDict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def take(self, caller: str) -> None:
        """Counts one request; ProblemError with ``Retry-After`` if the bucket is empty."""
        with self._lock:
            now = self.clock()
            left, then = self._left.pop(caller, (float(self.per_minute), now))
            left = min(self.per_minute, left + (now - then) * self.per_minute / 60)
            allowed = left >= 1
            self._left[caller] = (left - 1 if allowed else left, now)
            if len(self._left) > MOST_CALLERS:
                self._left.popitem(last=False)
        if not allowed:
            raise self._refused(left)

    def _refused(self, left: float) -> ProblemError:
        seconds = math.ceil((1 - left) * 60 / self.per_minute)
        return ProblemError(
            TOO_MANY,
            f"more than {self.per_minute} requests in a minute; wait {seconds} s, and send fewer requests (events and ETags "
            "save some)",
            headers={"Retry-After": str(seconds)},
        )


@dataclass(eq=False)
class Slots:
    """Slots of one kind; used from one event loop.

    Waiters get slots in the order of arrival; waiters of a token that has all of its slots are skipped.
    """

    at_most: int
    per_token: int
    _taken: Counter[str] = field(default_factory=Counter)
    _waiting: list[tuple[str, asyncio.Future[None]]] = field(default_factory=list)

    @property
    def taken(self) -> int:
        """The number of taken slots."""
        return self._taken.total()

    def of(self, token: str) -> int:
        """The number of slots that a token has taken."""
        return self._taken[token]

    def is_full(self, token: str) -> bool:
        """True if this token has taken all slots that one token may take."""
        return self._taken[token] >= self.per_token

    def take_now(self, token: str) -> bool:
        """Takes a slot if one is free for the token; returns whether it did."""
        if self.is_full(token) or self.taken >= self.at_most:
            return False
        self._taken[token] += 1
        return True

    async def take(self, token: str) -> None:
        """Waits for a slot and takes it."""
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
                self.give_back(token)  # the slot was assigned at this moment
            raise

    def give_back(self, token: str) -> None:
        """Gives a slot back; the next waiter gets it."""
        self._taken[token] -= 1
        if not self._taken[token]:
            del self._taken[token]
        for mine in list(self._waiting):
            # A waiter that was cancelled in this turn of the loop is listed until its own turn comes.
            if not mine[1].done() and self.take_now(mine[0]):
                self._waiting.remove(mine)
                mine[1].set_result(None)


def too_many(
    setting: str, what: str, slots: Slots, token: str, remedy: str, seconds: int
) -> ProblemError:
    """The problem for a missing slot; it names the limit.

    Args:
        setting: name of the server's limit; the name of a token's limit ends with ``_per_token``.
    """
    if slots.is_full(token):
        reached = (
            f"{slots.per_token} {what} by the token {token!r}, the most that one token may have at this server (its setting "
            f"{setting}_per_token)"
        )
    else:
        reached = f"{slots.at_most} {what}, the most that this server allows for all tokens together (its setting {setting})"
    return ProblemError(
        TOO_MANY, f"{reached}; {remedy}", remedy=remedy, headers={"Retry-After": str(seconds)}
    )


REMEDY = "try again later, or poll with If-None-Match"


GiveBack = Callable[[], None]
"""Ends the count of an open stream."""


class Streams:
    """The streams of this process; used from its event loop only."""

    def __init__(self, slots: Slots) -> None:
        self._slots = slots

    @property
    def open(self) -> int:
        """The number of open streams."""
        return self._slots.taken

    def take(self, token: str) -> GiveBack:
        """Opens a stream; it counts as open until the returned function is called. ProblemError if a limit is reached."""
        if not self._slots.take_now(token):
            raise too_many("streams", "streams are open", self._slots, token, REMEDY, 5)
        return partial(self._slots.give_back, token)


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
