"""The conversions in some states, for tests."""

from __future__ import annotations

from collections.abc import Collection

import sqlalchemy as sa
from reshard_server.db.conversions.rows import conversion_of
from reshard_server.db.documents import readable
from reshard_server.db.tables import CONVERSIONS
from reshard_server.schemas.conversion import (
    Conversion,
    State,
)


def of_states(db: sa.Engine, states: Collection[State]) -> list[Conversion]:
    """Every conversion in one of these states, oldest first."""
    order = CONVERSIONS.c.created_at, CONVERSIONS.c.id
    query = sa.select(CONVERSIONS).where(CONVERSIONS.c.state.in_(states)).order_by(*order)
    with db.connect() as connection:
        return readable(connection.execute(query), conversion_of)
