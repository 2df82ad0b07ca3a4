"""Rows of the conversions' table as ``Conversion``; and of those that have ended the totals, and the end of their records.

Totals outlive the records and are the same on every replica. Converted checkpoints stay.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import sqlalchemy as sa
from pydantic import TypeAdapter, ValidationError
from sqlalchemy.dialects import postgresql, sqlite

from reshard_server.db.documents import read, unreadable
from reshard_server.db.tables import (
    CONVERSION_LABELS,
    CONVERSION_NEEDS,
    CONVERSIONS,
    ENDED_TOTALS,
    IDEMPOTENCY,
)
from reshard_server.schemas.conversion import (
    Conversion,
    JobRequest,
    ProgressState,
    State,
    result_url,
)

ENDED: frozenset[State] = frozenset({"succeeded", "failed", "cancelled"})

_SAME = (
    "id", "state", "result", "read_bytes", "error", "attempts", "priority", "schedule", "revision"
)  # fmt: skip
"""Members of a conversion that are columns of its row."""

_REQUEST: TypeAdapter[JobRequest] = TypeAdapter(JobRequest)


def conversion_of(row: sa.Row[Any]) -> Conversion:
    """The conversion of a row; ``part_states`` adds its parts.

    Raises UnreadableError for a row of another version that this one cannot read.
    """
    what = f"the conversion {row.id}"
    request = read(_REQUEST, row.request, what)
    has_result = row.state == "succeeded" and row.result is None
    try:
        return Conversion(
            **{name: row._mapping[name] for name in _SAME},
            done=row.state in ENDED,
            request=request,
            progress=ProgressState.model_validate(row.progress) if row.progress else None,
            result_url=result_url(row.id) if has_result else None,
            part_counts=None if row.parts is None else {},
            created_by=row.token,
            created_at=moment(row.created_at),
            started_at=None if row.started_at is None else moment(row.started_at),
            ended_at=None if row.ended_at is None else moment(row.ended_at),
        )
    except ValidationError as error:
        raise unreadable(what) from error


def moment(seconds: float) -> datetime:
    """The datetime of a recorded time."""
    return datetime.fromtimestamp(seconds, UTC)


BATCH = 500
"""Rows per transaction, so that requests need not wait long."""


def remove_ended(db: sa.Engine, before: float) -> int:
    """Deletes conversions that ended before a time, with all that belongs to them; returns their number."""
    gone = 0
    while number := _remove_some(db, before):
        gone += number
    return gone


def _remove_some(db: sa.Engine, before: float) -> int:
    c = CONVERSIONS.c
    ended = c.state.in_(ENDED) & (c.ended_at < before) & c.parent.is_(None)
    with db.begin() as connection:
        ids = list(connection.scalars(sa.select(c.id).where(ended).limit(BATCH)))
        # Checked again: one may have been queued again in between.
        removed = CONVERSIONS.delete().where(c.id.in_(ids), ended).returning(c.id)
        gone = connection.scalars(removed).all()
        remove_around(connection, gone)
        return len(gone)


def remove_around(connection: sa.Connection, conversions: Sequence[str]) -> None:
    """Deletes what belongs to conversions whose rows are deleted: parts, labels, needs and keys."""
    connection.execute(CONVERSIONS.delete().where(CONVERSIONS.c.parent.in_(conversions)))
    for table in (CONVERSION_LABELS, CONVERSION_NEEDS, IDEMPOTENCY):
        connection.execute(table.delete().where(table.c.conversion.in_(conversions)))


BUCKET_SECONDS = (1, 5, 15, 60, 300, 900, 3600, 14400, 86400)
LONGER = 0
"""The bucket of conversions that took longer than the last bound."""


@dataclass(frozen=True, slots=True)
class Total:
    """Conversions that ended in one state, with a duration in one bucket."""

    state: str
    within_seconds: int
    conversions: int
    seconds: float
    moved_bytes: int


def count_ended(connection: sa.Connection, state: str, seconds: float, moved_bytes: int) -> None:
    """Adds one ended conversion."""
    within = next((b for b in BUCKET_SECONDS if seconds <= b), LONGER)
    new = {"conversions": 1, "seconds": seconds, "moved_bytes": moved_bytes}
    sum_of = {name: ENDED_TOTALS.c[name] + value for name, value in new.items()}
    insert = sqlite.insert if connection.dialect.name == "sqlite" else postgresql.insert
    added = insert(ENDED_TOTALS).values(state=state, within_seconds=within, **new)
    keys = ["state", "within_seconds"]
    connection.execute(added.on_conflict_do_update(index_elements=keys, set_=sum_of))


def totals(db: sa.Engine) -> list[Total]:
    """Every total, by state and bucket."""
    query = sa.select(ENDED_TOTALS).order_by(ENDED_TOTALS.c.state, ENDED_TOTALS.c.within_seconds)
    with db.connect() as connection:
        return [Total(**row._mapping) for row in connection.execute(query)]


def moved_bytes(result: list[dict[str, Any]] | None) -> int:
    """The moved bytes in a conversion's reports."""
    return sum(int(report.get("moved_bytes") or 0) for report in result or ())
