"""Schedules in the records: stored, replaced, paused, and their due times.

``revision`` counts changes of the schedule itself. ``next_at`` changes without it, by one statement that names the
value that was read: of several replicas only one starts a tick.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from pydantic import TypeAdapter

from reshard_server.db.clock import clock_of
from reshard_server.db.connections import notify
from reshard_server.db.conversions.rows import moment
from reshard_server.db.documents import (
    bytes_of,
    fitting,
    page_key,
    page_token,
    read,
    readable,
    recorded,
    stored_bytes,
    unknown_members,
)
from reshard_server.db.quotas import check_schedule
from reshard_server.db.tables import SCHEDULE_FORGOTTEN, SCHEDULE_OUTPUTS, SCHEDULE_RUNS, SCHEDULES
from reshard_server.schemas.schedule import Clock, Schedule, ScheduleBody, ScheduleRun
from reshard_server.settings import Settings

_S = SCHEDULES.c
_BODY: TypeAdapter[ScheduleBody] = TypeAdapter(ScheduleBody)


@dataclass(frozen=True, slots=True)
class StoredSchedule:
    """A row of the schedules' table.

    Attributes:
        token: name of the token that made it; its rights are the schedule's rights.
        next_at: time of the schedule's next look; for cron, its due time.
    """

    name: str
    body: ScheduleBody
    paused: bool
    token: str
    created_at: float
    updated_at: float
    next_at: float | None
    revision: int

    @property
    def tag(self) -> str:
        """The ETag of this state of the schedule."""
        return f'"{int(self.created_at * 1000)}-{self.revision}"'

    def as_schedule(self, last: ScheduleRun | None) -> Schedule:
        """The document for clients."""
        is_due = isinstance(self.body.when, Clock) and self.next_at is not None and not self.paused
        return Schedule(
            name=self.name,
            schedule=self.body.model_copy(update={"paused": self.paused}),
            paused=self.paused,
            created_by=self.token,
            created_at=moment(self.created_at),
            updated_at=moment(self.updated_at),
            next_at=moment(self.next_at) if is_due and self.next_at is not None else None,
            last=last,
            revision=self.revision,
        )


def get(db: sa.Engine, name: str) -> StoredSchedule | None:
    """The schedule with this name; None if there is none."""
    with db.connect() as connection:
        row = connection.execute(sa.select(SCHEDULES).where(_S.name == name)).one_or_none()
    return None if row is None else _stored(row)


def create(
    db: sa.Engine,
    name: str,
    token: str,
    body: ScheduleBody,
    next_at: float,
    settings: Settings | None = None,
) -> StoredSchedule | None:
    """Stores a new schedule; None if the name is taken.

    Args:
        settings: their quotas apply; None for no quotas.

    Raises ProblemError if a quota is used up.
    """
    now = clock_of(db).now()
    values = {**_values(token, body, next_at, now), "name": name, "created_at": now, "revision": 1}
    try:
        with db.begin() as connection:
            if settings is not None:
                check_schedule(connection, settings, token, name, values["bytes"])
            connection.execute(SCHEDULES.insert().values(values))
            notify(connection, "schedules")
    except sa.exc.IntegrityError:
        return None
    return get(db, name)


def replace(
    db: sa.Engine,
    before: StoredSchedule,
    body: ScheduleBody,
    next_at: float,
    settings: Settings | None = None,
    *,
    unchanged: bool = True,
) -> StoredSchedule | None:
    """Replaces the body. Raises ProblemError like ``create``.

    Returns None if the schedule was deleted meanwhile, or, with ``unchanged``, if it changed.
    """
    values = _values(before.token, body, next_at, clock_of(db).now())
    if settings is not None:
        with db.connect() as connection:
            check_schedule(connection, settings, before.token, before.name, values["bytes"])
    return _change(db, before, values, unchanged=unchanged)


def set_paused(
    db: sa.Engine, before: StoredSchedule, next_at: float, *, paused: bool, unchanged: bool
) -> StoredSchedule | None:
    """Pauses or resumes a schedule; None if it was deleted meanwhile, or, with ``unchanged``, if it changed."""
    now = clock_of(db).now()
    values = {"paused": paused, "next_at": next_at, "updated_at": now}
    return _change(db, before, values, unchanged=unchanged)


def delete(db: sa.Engine, before: StoredSchedule, *, unchanged: bool = True) -> bool:
    """Deletes a schedule and its history; conversions and outputs stay.

    Returns False if it was deleted meanwhile, or, with ``unchanged``, if it changed.
    """
    same = _as_before(before) if unchanged else _is(before)
    with db.begin() as connection:
        if not connection.execute(SCHEDULES.delete().where(*same)).rowcount:
            return False
        for table in (SCHEDULE_RUNS, SCHEDULE_FORGOTTEN, SCHEDULE_OUTPUTS):
            connection.execute(table.delete().where(table.c.schedule == before.name))
    return True


def page(
    db: sa.Engine, token: str | None, page_size: int, page_token_text: str | None
) -> tuple[list[StoredSchedule], str | None]:
    """Schedules of a token, or of all tokens, by name; and the page token of the next page.

    A page has fewer than ``page_size`` schedules if they are large.
    """
    listing = ["schedules", token]
    query = sa.select(SCHEDULES) if token is None else sa.select(SCHEDULES).where(_S.token == token)
    if page_token_text:
        (last,) = page_key(listing, page_token_text, (str,))
        query = query.where(_S.name > last)
    size = sa.func.coalesce(_S.bytes, bytes_of(db, _S.schedule))
    sizes = query.with_only_columns(_S.name, size.label("size")).order_by(_S.name)
    with db.connect() as connection:
        ahead = connection.execute(sizes.limit(page_size + 1)).all()
        number = fitting([row.size for row in ahead[:page_size]])
        names = [row.name for row in ahead[:number]]
        rows = connection.execute(query.where(_S.name.in_(names)).order_by(_S.name)).all()
    stored = readable(rows, _stored)
    more = len(ahead) > number
    return stored, page_token(listing, (names[-1],)) if more else None


def due(db: sa.Engine, now: float) -> list[StoredSchedule]:
    """Schedules that are due, the longest overdue first; without those of another version."""
    query = sa.select(SCHEDULES).where(_S.paused.is_(False), _S.next_at <= now)
    with db.connect() as connection:
        stored = readable(connection.execute(query.order_by(_S.next_at)), _stored)
    return [schedule for schedule in stored if not unknown_members(schedule.body)]


def next_due(db: sa.Engine, now: float) -> float | None:
    """The time at which the next schedule becomes due; None if there is none."""
    query = sa.select(sa.func.min(_S.next_at)).where(_S.paused.is_(False), _S.next_at > now)
    with db.connect() as connection:
        return connection.execute(query).scalar()


def look_now(db: sa.Engine, name: str) -> None:
    """Makes a schedule due at once, instead of at its next look."""
    now = clock_of(db).now()
    with db.begin() as connection:
        connection.execute(
            SCHEDULES.update().where(_S.name == name, _S.next_at > now).values(next_at=now)
        )
        notify(connection, "schedules")


def lock(connection: sa.Connection, name: str) -> None:
    """Keeps other transactions from locking or changing the schedule until this one ends."""
    connection.execute(SCHEDULES.update().where(_S.name == name).values(revision=_S.revision))


def advance(connection: sa.Connection, before: StoredSchedule, next_at: float) -> bool:
    """Moves ``next_at``, which wins the tick; False if another process won it, or the schedule changed."""
    change = SCHEDULES.update().where(
        *_as_before(before), _S.next_at == before.next_at, _S.paused.is_(False)
    )
    return bool(connection.execute(change.values(next_at=next_at)).rowcount)


def _values(token: str, body: ScheduleBody, next_at: float, now: float) -> dict[str, Any]:
    document = recorded(body)
    return {
        "schedule": document,
        "bytes": stored_bytes(document),
        "paused": body.paused,
        "token": token,
        "updated_at": now,
        "next_at": next_at,
    }


def _change(
    db: sa.Engine, before: StoredSchedule, values: dict[str, Any], *, unchanged: bool
) -> StoredSchedule | None:
    change = SCHEDULES.update().where(*(_as_before(before) if unchanged else _is(before)))
    with db.begin() as connection:
        done = connection.execute(change.values(**values, revision=_S.revision + 1))
        notify(connection, "schedules")
    return get(db, before.name) if done.rowcount else None


def _is(before: StoredSchedule) -> tuple[sa.ColumnElement[bool], ...]:
    """The same schedule, in any state: no other that was stored under its name later."""
    return _S.name == before.name, _S.created_at == before.created_at


def _as_before(before: StoredSchedule) -> tuple[sa.ColumnElement[bool], ...]:
    return *_is(before), _S.revision == before.revision


def _stored(row: sa.Row[Any]) -> StoredSchedule:
    """The schedule of a row. Raises UnreadableError for a schedule of another version that this one cannot read."""
    body = read(_BODY, row.schedule, f"the schedule {row.name!r}")
    facts = {name: row._mapping[name] for name in StoredSchedule.__slots__ if name != "body"}
    return StoredSchedule(body=body, **facts)
