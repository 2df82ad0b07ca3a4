"""A conversion held by a process that does nothing with it, so that tests choose what becomes of it."""

from __future__ import annotations

import sqlalchemy as sa
from reshard_server.records import claims
from reshard_server.records.claims import Claim
from reshard_server.records.tables import CONVERSIONS

FIRST = 1_000_000


def claimed(db: sa.Engine, conversion: str, executor: str = "other") -> Claim:
    """Claims a queued conversion, which runs from now on, whosever turn it is."""
    with db.begin() as connection:
        mine = CONVERSIONS.update().where(CONVERSIONS.c.id == conversion)
        connection.execute(mine.values(priority=FIRST))
    claim = claims.claim_next(db, executor, claims.new_claim_text(), FIRST)
    assert claim is not None
    assert claim.conversion == conversion
    return claim


def begun(db: sa.Engine, conversion: str) -> Claim:
    """As ``claimed``, with its first attempt begun."""
    claim = claimed(db, conversion)
    assert claims.begin_attempt(db, claim)
    return claim
