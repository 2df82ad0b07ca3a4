"""A conversion claimed by a process that does nothing with it, so that tests decide its outcome."""

from __future__ import annotations

import sqlalchemy as sa
from reshard_server.db.conversions import claims
from reshard_server.db.conversions.claims import Claim
from reshard_server.db.tables import CONVERSIONS


def claimed(db: sa.Engine, conversion: str, executor: str = "other") -> Claim:
    """Claims a queued conversion, which runs from now on, whosever turn it is."""
    claim = Claim(conversion, executor, claims.new_claim_text())
    mine = CONVERSIONS.update().where(
        CONVERSIONS.c.id == conversion, CONVERSIONS.c.state == "queued"
    )
    held = mine.values(
        state="running", executor=executor, claim=claim.text, revision=CONVERSIONS.c.revision + 1
    )
    with db.begin() as connection:
        assert connection.execute(held).rowcount == 1
    return claim


def begun(db: sa.Engine, conversion: str) -> Claim:
    """As ``claimed``, with its first attempt begun."""
    claim = claimed(db, conversion)
    assert claims.begin_attempt(db, claim)
    return claim
