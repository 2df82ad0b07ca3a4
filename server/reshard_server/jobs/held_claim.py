"""One claim as its holder sees it: whether to go on, and where to report progress."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

import sqlalchemy as sa

from reshard_server.db.conversions import claims
from reshard_server.db.conversions.claims import Claim, End
from reshard_server.errors.database_errors import unavailable
from reshard_server.host_clock import host_seconds
from reshard_server.schemas.conversion import ProgressState

LOG = logging.getLogger(__name__)

Order = Literal["go on", "cancel", "drain", "lost"]
"""drain: the server ends, another may go on. lost: another has the conversion, or will soon."""

T = TypeVar("T")

LOOK_SECONDS = 0.5
"""Between two looks at the row, and two changes of its progress."""


@dataclass
class Holding:
    """A claim that is held.

    Attributes:
        draining: set when this server ends.
        patience: seconds that the database may be out of reach before the claim counts as lost.
        lease_ends: when this process's lease ends, by ``host_seconds``.
        attempt: number of the attempt that was begun last.
    """

    db: sa.Engine
    claim: Claim
    draining: threading.Event
    patience: float
    lease_ends: Callable[[], float]
    attempt: int = 0
    _progress: ProgressState | None = None
    _looked: float = field(default_factory=time.monotonic)
    _heard: float = field(default_factory=time.monotonic)

    def tell(self, progress: ProgressState) -> None:
        """Keeps the newest progress for the next look."""
        self._progress = progress

    def order(self) -> Order:
        """What to do now; looks at the row at most every half second."""
        if self.draining.is_set():
            return "drain"
        if host_seconds() > self.lease_ends():
            LOG.warning("the lease has ended: the database confirmed no heartbeat")
            return "lost"
        now = time.monotonic()
        if now - self._looked < LOOK_SECONDS:
            return "go on"
        self._looked = now
        return self._asked()

    def _asked(self) -> Order:
        try:
            state = self._look()
        except sa.exc.SQLAlchemyError as error:
            LOG.warning("cannot reach the database: %s", error)
            return "lost" if time.monotonic() - self._heard > self.patience else "go on"
        self._heard = time.monotonic()
        if state is None:
            return "lost"
        return "cancel" if state == "cancelling" else "go on"

    def _look(self) -> claims.Held | None:
        progress, self._progress = self._progress, None
        if progress is None:
            return claims.state_of(self.db, self.claim)
        return claims.set_progress(self.db, self.claim, progress)

    def pause(self, seconds: float) -> Order:
        """Waits; less where there is an order other than to go on."""
        end = time.monotonic() + seconds
        while (order := self.order()) == "go on" and (left := end - time.monotonic()) > 0:
            self.draining.wait(min(left, LOOK_SECONDS))
        return order

    def begin_attempt(self) -> bool:
        """Counts an attempt; False where there is to be none."""
        number = self._insist(lambda: claims.begin_attempt(self.db, self.claim))
        self.attempt = number or 0
        return bool(number)

    def may_publish(self) -> bool:
        """Whether the attempt that runs is still the conversion's; False where the database does not say so."""
        try:
            return claims.may_publish(self.db, self.claim, self.attempt)
        except sa.exc.SQLAlchemyError as error:
            LOG.warning("cannot reach the database: %s", error)
            return False

    def finish(
        self,
        state: End,
        result: list[dict[str, Any]] | None = None,
        error: dict[str, Any] | None = None,
        read_bytes: int | None = None,
    ) -> bool:
        """Ends the conversion; False where the claim was lost."""
        told: dict[str, Any] = {"result": result, "error": error, "read_bytes": read_bytes}
        told["progress"] = self._progress
        ended = bool(self._insist(lambda: claims.finish(self.db, self.claim, state, **told)))
        if ended:
            _log_end(state, error)
        return ended

    def hand_back(self) -> None:
        """Lets another go on."""
        self._insist(lambda: claims.hand_back(self.db, self.claim))

    def _insist(self, change: Callable[[], T | None]) -> T | None:
        """Does it, again and again while the database is out of reach; None where patience ends."""
        end = time.monotonic() + self.patience
        while True:
            try:
                return change()
            except sa.exc.SQLAlchemyError as error:
                if unavailable(error) is None:
                    raise
                LOG.warning("cannot reach the database: %s", error)
                if time.monotonic() > end:
                    return None
            time.sleep(LOOK_SECONDS)


def _log_end(state: End, error: dict[str, Any] | None) -> None:
    level = logging.WARNING if state == "failed" else logging.INFO
    why = {} if error is None else {"problem": error["type"], "detail": error["detail"]}
    LOG.log(level, "ended", extra={"state": state, **why})
