"""Deliveries: the end of a conversion, told to a URL. Recorded, claimed for a try, judged, listed, sent again.

The transaction that ends a conversion also records its deliveries, so that no crash comes between. One statement claims a delivery
for one try, as conversions are claimed. It moves ``next_at`` behind the longest time of a try, so that the delivery of a process
that died is due again::

    waiting ──2xx──▶ delivered
      ▲  ├──410──▶ gone
      │  └──KEEP_TRYING_SECONDS──▶ failed
      └── send_again (any state)
"""

from __future__ import annotations

import random
import secrets
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import sqlalchemy as sa

from reshard_server.db.clock import clock_of
from reshard_server.db.connections import notify
from reshard_server.db.conversions.rows import moment
from reshard_server.db.tables import CONVERSIONS, DELIVERIES
from reshard_server.schemas.conversion import (
    result_url,
    short_reports,
)
from reshard_server.schemas.delivery import Delivery, DeliveryState

FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 10.0, 3600.0
"""Between two tries; the pause doubles each time. A receiver that restarts is back within the first few."""

KEEP_TRYING_SECONDS = 24 * 3600.0
"""A receiver that is away for longer needs a person, who can send the delivery again."""

CLAIM_SECONDS = 30.0
"""A try takes at most ``deliveries.post.TRY_SECONDS``, 10 s; the rest is for a busy host and its database."""

MOST_OF_A_CONVERSION = 200
"""Against a client that retries and cancels a conversion for ever, to fill the records: 25 ends with 8 URLs each."""

GONE_STATUS = 410
"""The receiver is away for good (RFC 9110)."""

_C, _D = CONVERSIONS.c, DELIVERIES.c
_RECEIVERS = _C.request["notify"]
_ENDED: sa.Select[Any] = sa.select(
    _C.id, _C.token, _C.state, _C.progress, _C.result, _C.read_bytes, _C.error, _C.attempts,
    _C.started_at, _C.ended_at, _C.revision, _RECEIVERS.label("receivers"),
).where(
    # Most conversions have no receiver; their results, megabytes each, are not read.
    _C.id.in_(sa.bindparam("ids", expanding=True)), _RECEIVERS.as_string().is_not(None)
)  # fmt: skip


def announce(connection: sa.Connection, conversions: Collection[str]) -> None:
    """Records the deliveries of conversions that this transaction ends; none for those that name no receiver."""
    if not conversions:
        return
    rows = connection.execute(_ENDED, {"ids": list(conversions)}).all()
    for row in rows:
        connection.execute(DELIVERIES.insert(), _deliveries(row))
        newest = sa.select(_D.id).where(_D.conversion == row.id)
        newest = newest.order_by(_D.created_at.desc()).limit(MOST_OF_A_CONVERSION)
        connection.execute(DELIVERIES.delete().where(_D.conversion == row.id, _D.id.not_in(newest)))
    if rows:
        notify(connection, "deliveries")


def _deliveries(row: sa.Row[Any]) -> list[dict[str, Any]]:
    event = f"{row.id}-{row.revision}"  # no other end of any conversion has this revision
    at = row.ended_at
    shared = {
        "conversion": row.id, "token": row.token, "event": event, "ended": _ended(row), "state": "waiting",
        "tries": 0, "created_at": at, "next_at": at, "until": at + KEEP_TRYING_SECONDS,
    }  # fmt: skip
    urls = dict.fromkeys(row.receivers)  # each URL gets one
    return [
        {**shared, "id": f"{event}-{number}", "url": url, "host": _host(url)}
        for number, url in enumerate(urls)
    ]


def _host(url: str) -> str:
    # Against a Python that takes less for a URL than the one that checked it: the conversion must end nevertheless.
    with suppress(ValueError):
        return urlsplit(url).hostname or ""
    return ""


def _ended(row: sa.Row[Any]) -> dict[str, Any]:
    """The members of the conversion that a retry changes, as they are now."""
    same = ("state", "progress", "read_bytes", "error", "attempts", "revision")
    times = {
        name: None if at is None else moment(at).isoformat().replace("+00:00", "Z")
        for name, at in (("started_at", row.started_at), ("ended_at", row.ended_at))
    }
    return {
        **{name: row._mapping[name] for name in same},
        **times,
        "done": True,
        "result": short_reports(row.result),
        "result_url": result_url(row.id) if row.state == "succeeded" else None,
    }


@dataclass(frozen=True, slots=True, eq=False)
class Due:
    """A delivery that is claimed for one try.

    Attributes:
        ended: members of the conversion as it ended.
        claim: the row names this text until the try is judged, or the delivery is claimed again.
        until: the time after which no further try is made.
    """

    id: str
    conversion: str
    token: str
    event: str
    ended: dict[str, Any]
    url: str
    host: str
    tries: int
    claim: str
    until: float


@dataclass(frozen=True, slots=True)
class Tried:
    """The outcome of a try.

    Attributes:
        status: of the answer; None if there was none.
        error: the reason why it was no success; None for a success.
    """

    status: int | None
    error: str | None = None


_other = DELIVERIES.alias()
_FIRST_DUE = (
    sa.select(_other.c.id)
    .where(
        _other.c.state == "waiting",
        _other.c.next_at <= sa.bindparam("now"),
        _other.c.host.not_in(sa.bindparam("hosts", expanding=True)),
        _other.c.token.not_in(sa.bindparam("tokens", expanding=True)),
    )
    .order_by(_other.c.next_at, _other.c.id)
    .limit(1)
    .with_for_update(skip_locked=True)  # of PostgreSQL: replicas take different rows at once
    .scalar_subquery()
)
_CLAIM_NEXT = (
    DELIVERIES.update()
    # Against two processes that choose the same row: only one of them finds it due.
    .where(_D.id == _FIRST_DUE, _D.state == "waiting", _D.next_at <= sa.bindparam("now"))
    .values(claim=sa.bindparam("its_claim"), tries=_D.tries + 1, next_at=sa.bindparam("free_again"))
    .returning(*(_D[name] for name in Due.__slots__))
)


def claim_next(db: sa.Engine, hosts: Collection[str], tokens: Collection[str]) -> Due | None:
    """Claims the delivery that is due for longest; None if none is.

    Args:
        hosts, tokens: their deliveries are left out.
    """
    now = clock_of(db).now()
    values = {"now": now, "free_again": now + CLAIM_SECONDS, "its_claim": secrets.token_hex(16)}
    with db.begin() as connection:
        row = connection.execute(
            _CLAIM_NEXT, {**values, "hosts": list(hosts), "tokens": list(tokens)}
        ).one_or_none()
    return None if row is None else Due(**row._mapping)


def judge(db: sa.Engine, due: Due, tried: Tried) -> DeliveryState | None:
    """Records the outcome of a try; returns the new state, or None if the claim is lost."""
    now = clock_of(db).now()
    next_at = now + pause_after(due.tries)
    state: DeliveryState = "waiting"
    if tried.error is None:
        state = "delivered"
    elif tried.status == GONE_STATUS:
        state = "gone"
    elif next_at > due.until:
        state = "failed"
    values: dict[str, Any] = {
        "state": state,
        "status": tried.status,
        "error": tried.error,
        "claim": None,
    }
    values |= {"next_at": next_at, "ended_at": None if state == "waiting" else now}
    change = DELIVERIES.update().where(_D.id == due.id, _D.claim == due.claim)
    with db.begin() as connection:
        return state if connection.execute(change.values(**values)).rowcount else None


def pause_after(tries: int) -> float:
    """Seconds between this try, counted from 1, and the next."""
    pause = min(FIRST_PAUSE_SECONDS * 2.0 ** min(tries - 1, 20), LONGEST_PAUSE_SECONDS)
    # Spread, against many deliveries that fail together and then come back together.
    return pause * random.uniform(0.8, 1.2)  # noqa: S311  (no secret)


def send_again(db: sa.Engine, conversion: str, delivery: str) -> Delivery | None:
    """Makes a delivery due now, whatever its state, and tries it as long as a new one; None if there is none."""
    now = clock_of(db).now()
    fresh = {"state": "waiting", "tries": 0, "claim": None, "ended_at": None}
    change = (
        DELIVERIES.update()
        .where(_D.conversion == conversion, _D.id == delivery)
        .values(**fresh, next_at=now, until=now + KEEP_TRYING_SECONDS)
        .returning(*DELIVERIES.c)
    )
    with db.begin() as connection:
        row = connection.execute(change).one_or_none()
        if row is None:
            return None
        notify(connection, "deliveries")
    return _delivery(row)


def of_conversion(db: sa.Engine, conversion: str) -> list[Delivery]:
    """The deliveries of a conversion, newest first."""
    query = sa.select(DELIVERIES).where(_D.conversion == conversion)
    with db.connect() as connection:
        rows = connection.execute(query.order_by(_D.created_at.desc(), _D.id)).all()
    return list(map(_delivery, rows))


def _delivery(row: sa.Row[Any]) -> Delivery:
    return Delivery(
        **{n: row._mapping[n] for n in ("id", "event", "url", "state", "tries", "status", "error")},
        outcome=row.ended["state"],
        created_at=moment(row.created_at),
        next_at=moment(row.next_at) if row.state == "waiting" else None,
        ended_at=None if row.ended_at is None else moment(row.ended_at),
    )


def next_due(db: sa.Engine) -> float | None:
    """The time at which the next delivery becomes due; None for none, and those that are due already do not count."""
    later = _D.next_at > clock_of(db).now()
    query = sa.select(sa.func.min(_D.next_at)).where(_D.state == "waiting", later)
    with db.connect() as connection:
        return connection.execute(query).scalar()


def count_deliveries(db: sa.Engine) -> dict[str, int]:
    """The number of deliveries in each state that occurs."""
    query = sa.select(_D.state, sa.func.count().label("many")).group_by(_D.state)
    with db.connect() as connection:
        return {row.state: row.many for row in connection.execute(query)}
