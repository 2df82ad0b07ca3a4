"""Deletes the records of conversions that ended long ago; converted checkpoints stay."""

from __future__ import annotations

import sqlalchemy as sa

from reshard_server.db.conversions.rows import ENDED
from reshard_server.db.tables import CONVERSION_LABELS, CONVERSIONS, IDEMPOTENCY

BATCH = 500
"""Rows per transaction, so that requests need not wait long."""


def remove_ended(db: sa.Engine, before: float) -> int:
    """Deletes conversions that ended before a time, with their labels and keys; returns how many."""
    gone = 0
    while number := _remove_some(db, before):
        gone += number
    return gone


def _remove_some(db: sa.Engine, before: float) -> int:
    ended = CONVERSIONS.c.state.in_(ENDED) & (CONVERSIONS.c.ended_at < before)
    with db.begin() as connection:
        ids = list(connection.scalars(sa.select(CONVERSIONS.c.id).where(ended).limit(BATCH)))
        for table in (CONVERSION_LABELS, IDEMPOTENCY):
            connection.execute(table.delete().where(table.c.conversion.in_(ids)))
        # Checked again: one may have been queued again in between.
        return connection.execute(
            CONVERSIONS.delete().where(CONVERSIONS.c.id.in_(ids), ended)
        ).rowcount
