"""Recognises the reason why the database accepts no changes: it does not answer, is read-only, or its disk is full.

Drivers raise errors of several classes for this; PostgreSQL's error for a read-only transaction is an InternalError,
not an OperationalError.
"""

from __future__ import annotations

from dataclasses import dataclass

import sqlalchemy as sa


@dataclass(frozen=True, slots=True)
class Unavailable:
    """A reason, for messages.

    Attributes:
        takes_no_changes: True if the database answers queries but refuses changes.
    """

    why: str
    remedy: str
    takes_no_changes: bool = True

    @property
    def detail(self) -> str:
        return f"{self.why}; {self.remedy}"


_AGAIN = "send the request again later, and see the server's log"

NO_ANSWER = Unavailable("the database does not answer", _AGAIN, takes_no_changes=False)
READ_ONLY = Unavailable(
    "the database is read-only, so nothing can be changed",
    "send the request again when it accepts changes, and see the server's log",
)
FULL = Unavailable(
    "the disk of the server's records is full, so nothing can be changed",
    "free space there, and send the request again",
)
FAILING = Unavailable("the disk of the server's records fails", _AGAIN)

_OF_SQLITE = {8: READ_ONLY, 10: FAILING, 13: FULL}
"""By SQLite's primary result code."""

_OF_POSTGRES = {"25006": READ_ONLY, "53100": FULL, "25P03": NO_ANSWER}
"""By SQLSTATE; the last one means that a transaction of this process was idle for too long."""

_WORDS = (("readonly database", READ_ONLY), ("disk is full", FULL), ("disk I/O error", FAILING))
"""Messages, for a SQLite module without codes."""


def unavailable(error: BaseException) -> Unavailable | None:
    """The reason, if the database causes this error; None for any other error."""
    if isinstance(error, sa.exc.TimeoutError):
        return NO_ANSWER
    if not isinstance(error, sa.exc.DBAPIError):
        return None
    if (found := _reason_of(error.orig)) is not None:
        return found
    is_lost = isinstance(error, sa.exc.OperationalError) or error.connection_invalidated
    return NO_ANSWER if is_lost else None


def _reason_of(driver: BaseException | None) -> Unavailable | None:
    """The reason for a driver's error, by its code."""
    if (state := getattr(driver, "sqlstate", None)) is not None:
        return _OF_POSTGRES.get(state)
    if (code := getattr(driver, "sqlite_errorcode", None)) is not None:
        return _OF_SQLITE.get(code & 0xFF)
    return next((found for words, found in _WORDS if words in str(driver)), None)


def renew_read_only(db: sa.Engine) -> None:
    """Closes connections that turn out to be read-only: a new one may reach the server that took over."""

    @sa.event.listens_for(db, "handle_error")
    def _renew(context: sa.engine.ExceptionContext) -> None:
        if _reason_of(context.original_exception) is READ_ONLY:
            context.is_disconnect = True
