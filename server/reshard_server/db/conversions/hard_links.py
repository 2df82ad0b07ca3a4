"""Holds in the records: which folders of hard links are there, and who needs them.

::

    made by an executor ──▶ of a conversion ──it ended──▶ nobody's ──removed──▶ forgotten
             └──the executor died──────────────────────────▲
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import sqlalchemy as sa

from reshard_server.db.conversions.rows import ENDED
from reshard_server.db.tables import CONVERSIONS, EXECUTORS, SCHEDULE_HOLDS

NOBODY = ""

_H = SCHEDULE_HOLDS.c


@dataclass(frozen=True, slots=True)
class Hold:
    """A folder of hard links."""

    id: str
    path: Path


def record(db: sa.Engine, hold: Hold, executor: str) -> None:
    """Says that an executor is about to make it."""
    with db.begin() as connection:
        row = {"id": hold.id, "path": str(hold.path), "executor": executor}
        connection.execute(SCHEDULE_HOLDS.insert().values(row))


def give(connection: sa.Connection, hold: str, conversion: str) -> bool:
    """Gives it to the conversion that will read it; False where it is gone."""
    change = SCHEDULE_HOLDS.update().where(_H.id == hold, _H.conversion.is_(None))
    return bool(connection.execute(change.values(conversion=conversion)).rowcount)


def held_path(db: sa.Engine, conversion: str) -> Path | None:
    """Where the source of a conversion is held."""
    with db.connect() as connection:
        query = sa.select(_H.path).where(_H.conversion == conversion)
        found = connection.execute(query).scalar()
    return None if found is None else Path(found)


def free_ended(db: sa.Engine) -> None:
    """Takes holds from conversions that have ended, or whose records are gone."""
    going_on = sa.select(CONVERSIONS.c.id).where(
        CONVERSIONS.c.id == _H.conversion, CONVERSIONS.c.state.not_in(ENDED)
    )
    ended = _H.conversion.is_not(None) & ~going_on.exists()
    with db.begin() as connection:
        freed = SCHEDULE_HOLDS.update().where(ended)
        connection.execute(freed.values(conversion=None, executor=NOBODY))


def left_over(db: sa.Engine, heard_after: sa.ColumnElement[float]) -> list[Hold]:
    """Holds that nobody needs: of no conversion, and of no process that lives."""
    live = sa.select(EXECUTORS.c.id).where(EXECUTORS.c.heartbeat_at >= heard_after)
    query = sa.select(_H.id, _H.path).where(_H.conversion.is_(None), _H.executor.not_in(live))
    with db.connect() as connection:
        return [Hold(row.id, Path(row.path)) for row in connection.execute(query)]


def forget(db: sa.Engine, hold: str) -> None:
    """The folder is gone; one that a conversion was given meanwhile stays."""
    with db.begin() as connection:
        connection.execute(SCHEDULE_HOLDS.delete().where(_H.id == hold, _H.conversion.is_(None)))
