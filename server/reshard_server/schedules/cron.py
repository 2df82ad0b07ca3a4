"""When a cron expression is due, in UTC, and what to do about missed ticks.

::

    next_at      due    now
    ───┬────┬─────┬──────┬───┬──▶     due: the last tick that is not after now
       └ missed ──┘      │   └ following
                         └ on time where due is at most LATE_SECONDS ago
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from croniter import CroniterError, croniter

from reshard_server.errors.problems import INVALID, ProblemError

LATE_SECONDS = 300.0
"""A tick that is noticed this late was not missed: a restart, or a step with many files, takes some time."""

_FIELDS = 5
_CHARACTERS = re.compile(r"[0-9A-Za-z*/,\-#? ]+")


@dataclass(frozen=True, slots=True)
class Ticks:
    """What is to be done about a schedule that is due.

    Attributes:
        run: the tick that is to be run; None for none.
        missed: first and last of the ticks that are given up; None for none.
        following: the next tick.
    """

    run: float | None
    missed: tuple[float, float] | None
    following: float


def check_cron(cron: str, now: float) -> None:
    """ProblemError where the expression is none, or is never due."""
    if len(cron.split()) != _FIELDS or not _CHARACTERS.fullmatch(cron):
        raise _no_cron(cron, f"found {len(cron.split())} fields")
    try:
        croniter(cron, now, hash_id=None).get_next(float)
    except (CroniterError, ValueError, KeyError, OverflowError) as error:
        raise _no_cron(cron, str(error)) from error
    if re.search(r"\br\b|\bh\b", cron, re.IGNORECASE):
        raise _no_cron(cron, "times by chance (R, H) are not supported")


def next_tick(cron: str, after: float) -> float:
    """The first tick behind a time."""
    return float(croniter(cron, _utc(after)).get_next(float))


def last_tick(cron: str, at: float) -> float:
    """The last tick that is not behind a time."""
    behind = _utc(at) + timedelta(microseconds=1)
    return float(croniter(cron, behind).get_prev(float))


def ticks(cron: str, next_at: float, now: float, *, catch_up: bool) -> Ticks:
    """What is to be done, where the first tick that was not looked at is ``next_at``."""
    due, following = max(next_at, last_tick(cron, now)), next_tick(cron, now)
    if now - due <= LATE_SECONDS or catch_up:
        before = last_tick(cron, due - 1)
        return Ticks(due, (next_at, before) if due > next_at else None, following)
    return Ticks(None, (next_at, due), following)


def written(seconds: float) -> str:
    """A time as keys and messages have it."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


def exactly_written(seconds: float) -> str:
    """The same, to the microsecond, so that no two are equal."""
    found = datetime.fromtimestamp(seconds, UTC)
    return found.isoformat(timespec="microseconds").replace("+00:00", "Z")


def _utc(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)


def _no_cron(cron: str, why: str) -> ProblemError:
    return ProblemError(
        INVALID,
        f"{cron!r} is no cron expression that is ever due: {why}; give minute, hour, day of month, month and day of "
        "week, in UTC, such as '0 3 * * *'",
        "/when/cron",
        "give minute, hour, day of month, month and day of week, in UTC, such as '0 3 * * *'",
    )
