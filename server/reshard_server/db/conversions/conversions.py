"""Conversions in the records: created, read, listed, watched, cancelled, requeued, deleted; ``claims`` is for running them.

Every change is one statement that names the states from which it may start, so that only one of two replicas that
change the same row succeeds::

    queued ──claim──▶ running ──finish──▶ succeeded | failed | cancelled
      │                  │ cancel                       │
      │ cancel           ▼                              │ requeue (failed, cancelled)
      ▼              cancelling ──finish──▶ …           ▼
    cancelled                                         queued

``parts`` has the further changes of one that runs as parts. Their rows are never read here.

One query at a time reads the revisions of all watched conversions, changed by this process or by another replica. A
watcher sees the newest state, not every state in between.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any

import sqlalchemy as sa

from reshard.geometry.sizes import parse_bytes
from reshard_server.db.clock import clock_of
from reshard_server.db.connections import notify
from reshard_server.db.conversions import parts
from reshard_server.db.conversions.executors import label_texts, waiting_for
from reshard_server.db.conversions.part_states import sums, with_parts
from reshard_server.db.conversions.rows import ENDED, conversion_of, count_ended, remove_around
from reshard_server.db.deliveries import announce
from reshard_server.db.documents import bytes_of, fitting, page_key, page_token, readable, recorded
from reshard_server.db.stored.kinds import pin_stored
from reshard_server.db.tables import CONVERSION_LABELS, CONVERSION_NEEDS, CONVERSIONS
from reshard_server.schemas.conversion import (
    Conversion,
    ConversionPage,
    JobRequest,
    State,
)

_C = CONVERSIONS.c
_OF_ATTEMPTS = ("progress", "result", "read_bytes", "error", "started_at", "ended_at")
# The statements of every request are built once: building takes longer than SQLite's answer.
_INSERT = CONVERSIONS.insert().returning(*CONVERSIONS.c, sort_by_parameter_order=True)
_INSERT_LABELS = CONVERSION_LABELS.insert()
_INSERT_NEEDS = CONVERSION_NEEDS.insert()
_IS_ONE = _C.id == sa.bindparam("conversion"), _C.parent.is_(None)
_ONE = sa.select(CONVERSIONS).where(*_IS_ONE)
_WITHOUT_RESULT: sa.Select[Any] = sa.select(
    *(column for column in CONVERSIONS.c if column is not _C.result), sa.null().label("result")
)
"""A result has an entry for every tensor: megabytes, which most requests do not need."""
_ONE_WITHOUT_RESULT = _WITHOUT_RESULT.where(*_IS_ONE)
_QUEUED = sa.select(sa.func.count()).where(
    _C.token == sa.bindparam("token"), _C.state == "queued", _C.parent.is_(None)
)


@dataclass(frozen=True, slots=True)
class Filters:
    """Filters of a listing of conversions; members that are None or empty do not filter.

    Attributes:
        token: name of the token that made them.
        source: prefix of the source.
        labels: the conversion must have all of these.
        source_part: text anywhere in the source; ASCII letters match in any case.
        label_key: key of a label, with any value.
        created_after, created_before: seconds since 1970; the first inclusive, the second exclusive.
        is_delta: True for deltas only, False for other conversions only.
    """

    token: str | None = None
    states: tuple[State, ...] = ()
    source: str | None = None
    schedule: str | None = None
    labels: tuple[tuple[str, str], ...] = ()
    created_after: float | None = None
    created_before: float | None = None
    source_part: str | None = None
    label_key: str | None = None
    is_delta: bool | None = None


@dataclass(frozen=True, slots=True)
class New:
    """A conversion to record.

    Attributes:
        token: name of the token that requests it.
        schedule: name of the schedule that requests it.
    """

    token: str
    request: JobRequest
    schedule: str | None = None


def create(
    db: sa.Engine, *, token: str, request: JobRequest, schedule: str | None = None
) -> Conversion:
    """Records a queued conversion."""
    with db.begin() as connection:
        return insert(connection, [New(token, request, schedule)])[0]


def insert(connection: sa.Connection, new: Sequence[New]) -> list[Conversion]:
    """Records queued conversions in this order, within a transaction; pins stored layouts and maps to a version."""
    pinned = pin_stored(connection, [one.request for one in new])
    clock = clock_of(connection)
    # Rounded as clients see it, so that a time that they read works as a filter.
    rows = [
        _row(one, request, round(clock.now(), 6)) for one, request in zip(new, pinned, strict=True)
    ]
    made = connection.execute(_INSERT, rows).all()
    labels = [
        {"conversion": row["id"], "key": key, "value": value}
        for row, one in zip(rows, new, strict=True)
        for key, value in one.request.labels.items()
    ]
    needs = [
        {"conversion": row["id"], "label": text}
        for row, one in zip(rows, new, strict=True)
        for text in label_texts(one.request.host_labels)
    ]
    for statement, found in ((_INSERT_LABELS, labels), (_INSERT_NEEDS, needs)):
        if found:
            connection.execute(statement, found)
    notify(connection, "conversions")
    return list(map(conversion_of, made))


def _row(new: New, request: JobRequest, now: float) -> dict[str, Any]:
    asked = new.request.max_memory
    return {
        # Sorts by time: milliseconds, then random bits.
        "id": f"{int(now * 1000):012x}{secrets.token_hex(8)}",
        "token": new.token,
        "state": "queued",
        "priority": new.request.priority,
        "request": recorded(request),
        "source": new.request.source,
        "schedule": new.schedule,
        "created_at": now,
        "max_memory": None if asked is None else parse_bytes(asked),
    }


def get(
    db: sa.Engine, conversion: str, with_result: bool = True, whole: bool = True
) -> Conversion | None:
    """The conversion with this id, with or without its result and, unless ``whole``, without its parts; None if there is none."""
    query = _ONE if with_result else _ONE_WITHOUT_RESULT
    with db.connect() as connection:
        row = connection.execute(query, {"conversion": conversion}).one_or_none()
        if row is None:
            return None
        found = conversion_of(row)
        if not whole:
            return found
        [found] = with_parts(connection, [found], listed=True)
        if found.done or row.claim is not None:
            return found
        lacking = waiting_for(connection, row.max_memory, found.request.host_labels)
        return found if lacking is None else found.model_copy(update={"waiting_for": lacking})


def get_many(db: sa.Engine, ids: Collection[str]) -> dict[str, Conversion]:
    """The existing conversions among these ids."""
    of_ids = _C.id.in_(ids), _C.parent.is_(None)
    with db.connect() as connection:
        rows = connection.execute(sa.select(CONVERSIONS).where(*of_ids)).all()
        found = with_parts(connection, readable(rows, conversion_of))
    return {conversion.id: conversion for conversion in found}


def revisions(db: sa.Engine, ids: Collection[str]) -> dict[str, int]:
    """The revisions of the existing conversions among these ids, with their parts'."""
    with db.connect() as connection:
        query = sa.select(_C.id, _C.revision, _C.parts).where(_C.id.in_(ids))
        rows = connection.execute(query).all()
        found = sums(connection, [row.id for row in rows if row.parts is not None])
    return {
        row.id: row.revision + (found[row.id].revision if row.id in found else 0) for row in rows
    }


def _listed(conversion: Conversion) -> Conversion:
    """The conversion without its progress over time, which would double a listing."""
    if conversion.progress is None or conversion.progress.over_time is None:
        return conversion
    progress = conversion.progress.model_copy(update={"over_time": None})
    return conversion.model_copy(update={"progress": progress})


def page(
    db: sa.Engine, filters: Filters, page_size: int, page_token_text: str | None = None
) -> ConversionPage:
    """Conversions without their results, newest first.

    A result has an entry for every tensor, so a page of them could be hundreds of megabytes. A page has fewer than
    ``page_size`` conversions if requests are large.

    Raises ProblemError for the page token of another listing.
    """
    query = _WITHOUT_RESULT.where(*_conditions(filters))
    if page_token_text:
        at, id_ = page_key(_listing(filters), page_token_text, (float, str))
        before = sa.and_(_C.created_at == at, _C.id < id_)
        query = query.where(sa.or_(_C.created_at < at, before))
    query = query.order_by(_C.created_at.desc(), _C.id.desc())
    sizes = query.with_only_columns(_C.id, _C.created_at, bytes_of(db, _C.request).label("size"))
    with db.connect() as connection:
        ahead = connection.execute(sizes.limit(page_size + 1)).all()
        number = fitting([row.size for row in ahead[:page_size]])
        rows = connection.execute(query.limit(number)).all() if number else []
        found = with_parts(connection, readable(rows, conversion_of))
    more = len(ahead) > number
    last = ahead[number - 1] if more else None
    return ConversionPage(
        conversions=list(map(_listed, found)),
        next_page_token=page_token(_listing(filters), (last.created_at, last.id)) if last else None,
    )


def _listing(filters: Filters) -> dict[str, Any]:
    """The filters to which a page token is bound; without unused newer ones, for servers of the previous version."""
    newer = ("source_part", "label_key", "is_delta")
    return {k: v for k, v in asdict(filters).items() if k not in newer or v is not None}


def count_by_state(db: sa.Engine, token: str | None = None) -> dict[str, int]:
    """The number of conversions in each state that occurs, of one token or of all."""
    many = sa.func.count().label("many")
    query = sa.select(_C.state, many).where(_C.parent.is_(None)).group_by(_C.state)
    if token is not None:
        query = query.where(_C.token == token)
    with db.connect() as connection:
        return {row.state: row.many for row in connection.execute(query)}


def count_queued(connection: sa.Connection, token: str) -> int:
    """The number of queued conversions of a token."""
    return int(connection.execute(_QUEUED, {"token": token}).scalar_one())


def request_cancel(db: sa.Engine, conversion: str) -> Conversion | None:
    """Cancels a queued conversion, or asks a running one to stop; None if there is no such conversion."""
    now = clock_of(db).now()
    with db.begin() as connection:
        if _set(connection, conversion, {"queued"}, {"state": "cancelled", "ended_at": now}):
            start = connection.scalar(sa.select(_C.started_at).where(_C.id == conversion))
            count_ended(connection, "cancelled", max(0.0, now - (start or now)), 0)
            announce(connection, [conversion])
        elif _set(connection, conversion, {"running"}, {"state": "cancelling"}):
            parts.stop(connection, conversion)
            parts.settle(connection, [conversion])
    return get(db, conversion)


def requeue(db: sa.Engine, conversion: str) -> Conversion | None:
    """Queues a failed or cancelled conversion again, with no attempts counted; None for any other state.

    One in parts is split again, which keeps the parts that succeeded.
    """
    fresh = dict.fromkeys(_OF_ATTEMPTS)
    queued = {**fresh, "state": "queued", "attempts": 0, "parts_left": None}
    with db.begin() as connection:
        if not _set(connection, conversion, {"failed", "cancelled"}, queued):
            return None
    return get(db, conversion)


def delete(db: sa.Engine, conversion: str) -> bool:
    """Deletes a conversion that has ended; False if it has not, or does not exist."""
    with db.begin() as connection:
        gone = connection.execute(
            CONVERSIONS.delete().where(
                _C.id == conversion, _C.parent.is_(None), _C.state.in_(ENDED)
            )
        )
        if not gone.rowcount:
            return False
        remove_around(connection, [conversion])
    return True


def _set(
    connection: sa.Connection, conversion: str, states: set[State], values: dict[str, Any]
) -> bool:
    """Sets values if the row is in one of the states; True if it was."""
    of_clients = _C.id == conversion, _C.parent.is_(None)
    change = CONVERSIONS.update().where(*of_clients, _C.state.in_(states))
    done = connection.execute(change.values(**values, revision=_C.revision + 1))
    if done.rowcount and values["state"] != "cancelling":
        notify(connection, "conversions")
    return bool(done.rowcount)


def _conditions(filters: Filters) -> list[sa.ColumnElement[bool]]:
    conditions: list[sa.ColumnElement[bool]] = [_C.parent.is_(None)]
    if filters.token is not None:
        conditions.append(_C.token == filters.token)
    if filters.states:
        conditions.append(_C.state.in_(filters.states))
    if filters.source is not None:  # LIKE ignores case on SQLite
        conditions.append(sa.func.substr(_C.source, 1, len(filters.source)) == filters.source)
    if filters.source_part is not None:
        conditions.append(_C.source.icontains(filters.source_part, autoescape=True))
    if filters.label_key is not None:
        conditions.append(_has_label(filters.label_key))
    if filters.is_delta is not None:
        old = _C.request["old"].as_string()
        conditions.append(old.is_not(None) if filters.is_delta else old.is_(None))
    if filters.schedule is not None:
        conditions.append(_C.schedule == filters.schedule)
    if filters.created_after is not None:
        conditions.append(_C.created_at >= filters.created_after)
    if filters.created_before is not None:
        conditions.append(_C.created_at < filters.created_before)
    return conditions + [_has_label(key, value) for key, value in filters.labels]


def _has_label(key: str, value: str | None = None) -> sa.ColumnElement[bool]:
    label = CONVERSION_LABELS.c
    exists = sa.exists().where(label.conversion == _C.id, label.key == key)
    return (exists if value is None else exists.where(label.value == value)).correlate(CONVERSIONS)


LOG = logging.getLogger(__name__)

INTERVAL_SECONDS = 0.25
INTERVAL_AFTER_FAILURE_SECONDS = 2.0


@dataclass(eq=False)
class Watcher:
    """Waits for changes of a conversion after a revision.

    Attributes:
        newest: the last state that was read; None if the conversion was deleted.
        wake: set on each change.
    """

    conversion: str
    revision: int
    newest: Conversion | None = None
    wake: asyncio.Event = field(default_factory=asyncio.Event)


@dataclass(eq=False)
class Feed:
    """The watchers, and the task that polls for them while there are any."""

    db: sa.Engine
    watchers: set[Watcher] = field(default_factory=set)
    task: asyncio.Task[None] | None = None

    @contextmanager
    def watching(self, conversion: str, revision: int) -> Iterator[Watcher]:
        """A watcher of the changes after this revision."""
        watcher = Watcher(conversion, revision)
        self.watchers.add(watcher)
        if self.task is None or self.task.done():
            self.task = asyncio.create_task(self._poll())
        try:
            yield watcher
        finally:
            self.watchers.discard(watcher)

    async def _poll(self) -> None:
        while self.watchers:
            try:
                await self._wake_changed()
                await asyncio.sleep(INTERVAL_SECONDS)
            except sa.exc.SQLAlchemyError as error:
                LOG.warning("cannot read the records for streams of events: %s", error)
                await asyncio.sleep(INTERVAL_AFTER_FAILURE_SECONDS)

    async def _wake_changed(self) -> None:
        watched = {w.conversion for w in self.watchers}
        now = await asyncio.to_thread(revisions, self.db, watched)
        behind = [w for w in self.watchers if now.get(w.conversion) != w.revision]
        if not behind:
            return
        conversions = await asyncio.to_thread(get_many, self.db, {w.conversion for w in behind})
        for watcher in behind:
            watcher.newest = conversions.get(watcher.conversion)
            watcher.revision = watcher.newest.revision if watcher.newest else -1
            watcher.wake.set()
