"""The due times of a cron expression, in UTC, and the treatment of missed ticks.

::

    next_at      due    now
    ───┬────┬─────┬──────┬───┬──▶     due: the last tick that is not after now
       └ missed ──┘      │   └ following
                         └ on time if due is at most LATE_SECONDS ago
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from croniter import CroniterError, croniter

from reshard_server.errors.problems import INVALID, ProblemError

LATE_SECONDS = 300.0
"""A tick that is noticed this late still runs: a restart, or a step with many files, takes some time."""

_FIELDS = 5
_CHARACTERS = re.compile(r"[0-9A-Za-z*/,\-#? ]+")


@dataclass(frozen=True, slots=True)
class Ticks:
    """The decision about a schedule that is due.

    Attributes:
        run: the tick to run, or None.
        missed: the first and the last tick that are skipped, or None.
        following: the next tick.
    """

    run: float | None
    missed: tuple[float, float] | None
    following: float


def check_cron(cron: str, now: float) -> None:
    """Raises ProblemError for text that is not a cron expression, or an expression that is never due."""
    if len(cron.split()) != _FIELDS or not _CHARACTERS.fullmatch(cron):
        raise _no_cron(cron, f"found {len(cron.split())} fields")
    try:
        croniter(cron, now, hash_id=None).get_next(float)
    except (CroniterError, ValueError, KeyError, OverflowError) as error:
        raise _no_cron(cron, str(error)) from error
    if re.search(r"\br\b|\bh\b", cron, re.IGNORECASE):
        raise _no_cron(cron, "times by chance (R, H) are not supported")


def next_tick(cron: str, after: float) -> float:
    """The first tick after a time."""
    return float(croniter(cron, _utc(after)).get_next(float))


def last_tick(cron: str, at: float) -> float:
    """The last tick at or before a time."""
    just_after = _utc(at) + timedelta(microseconds=1)
    return float(croniter(cron, just_after).get_prev(float))


def ticks(cron: str, next_at: float, now: float, *, catch_up: bool) -> Ticks:
    """The decision now, if ``next_at`` is the first tick that was not handled."""
    due, following = max(next_at, last_tick(cron, now)), next_tick(cron, now)
    if now - due <= LATE_SECONDS or catch_up:
        before = last_tick(cron, due - 1)
        return Ticks(due, (next_at, before) if due > next_at else None, following)
    return Ticks(None, (next_at, due), following)


def second_text(seconds: float) -> str:
    """A time as keys and messages write it."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


def microsecond_text(seconds: float) -> str:
    """A time to the microsecond, so that no two keys are equal."""
    moment = datetime.fromtimestamp(seconds, UTC)
    return moment.isoformat(timespec="microseconds").replace("+00:00", "Z")


def _utc(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)


def _no_cron(cron: str, why: str) -> ProblemError:
    return ProblemError(
        INVALID,
        f"{cron!r} is not a cron expression that is ever due: {why}; give minute, hour, day of month, month and day of "
        "week, in UTC, such as '0 3 * * *'",
        "/when/cron",
    )
