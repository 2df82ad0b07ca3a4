"""A claim of this process: the decision whether to continue, and reports of progress and the end."""

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

Order = Literal["continue", "cancel", "drain", "lost"]
"""drain: this server ends, and another may continue. lost: another server has the conversion, or will soon."""

T = TypeVar("T")

LOOK_SECONDS = 0.5
"""Between two reads of the row, and between two changes of its progress."""


@dataclass
class HeldClaim:
    """A claim on a conversion, and the database that decides whether it still stands.

    Attributes:
        draining: set when this server ends.
        patience: seconds without the database after which the claim counts as lost.
        lease_ends: returns when this process's lease ends, by ``host_seconds``.
        attempt: number of the last attempt that was begun.
    """

    db: sa.Engine
    claim: Claim
    draining: threading.Event
    patience: float
    lease_ends: Callable[[], float]
    attempt: int = 0
    _progress: ProgressState | None = None
    _read_at: float = field(default_factory=time.monotonic)
    _answered_at: float = field(default_factory=time.monotonic)

    def report(self, progress: ProgressState) -> None:
        """Keeps the newest progress until the row is read next."""
        self._progress = progress

    def order(self) -> Order:
        """The present order; reads the row at most every half second."""
        if self.draining.is_set():
            return "drain"
        if host_seconds() > self.lease_ends():
            LOG.warning("the lease has ended: the database confirmed no heartbeat")
            return "lost"
        now = time.monotonic()
        if now - self._read_at < LOOK_SECONDS:
            return "continue"
        self._read_at = now
        return self._read_order()

    def _read_order(self) -> Order:
        try:
            state = self._read_state()
        except sa.exc.SQLAlchemyError as error:
            LOG.warning("cannot reach the database: %s", error)
            return "lost" if time.monotonic() - self._answered_at > self.patience else "continue"
        self._answered_at = time.monotonic()
        if state is None:
            return "lost"
        return "cancel" if state == "cancelling" else "continue"

    def _read_state(self) -> claims.Held | None:
        progress, self._progress = self._progress, None
        if progress is None:
            return claims.state_of(self.db, self.claim)
        return claims.set_progress(self.db, self.claim, progress)

    def pause(self, seconds: float) -> Order:
        """Waits; returns sooner with any order other than to continue."""
        end = time.monotonic() + seconds
        while (order := self.order()) == "continue" and (left := end - time.monotonic()) > 0:
            self.draining.wait(min(left, LOOK_SECONDS))
        return order

    def begin_attempt(self) -> bool:
        """Counts an attempt; False if the claim was lost or the conversion is to be cancelled."""
        number = self._insist(lambda: claims.begin_attempt(self.db, self.claim))
        self.attempt = number or 0
        return bool(number)

    def may_publish(self) -> bool:
        """True if this attempt is still the conversion's own; False if the database does not confirm it."""
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
        """Writes the end of the conversion; False if the claim was lost."""
        values: dict[str, Any] = {"result": result, "error": error, "read_bytes": read_bytes}
        values["progress"] = self._progress
        ended = bool(self._insist(lambda: claims.finish(self.db, self.claim, state, **values)))
        if ended:
            _log_end(state, error)
        return ended

    def hand_back(self) -> None:
        """Queues the conversion again for another server."""
        self._insist(lambda: claims.hand_back(self.db, self.claim))

    def _insist(self, change: Callable[[], T | None]) -> T | None:
        """Repeats a change while the database is out of reach; None when the patience ends."""
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
