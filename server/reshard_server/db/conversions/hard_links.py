"""Records of the folders of hard links, and of the conversion that reads each.

::

    made by an executor ──▶ of a conversion ──it ended──▶ unowned ──removed──▶ forgotten
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
class LinkFolder:
    """A folder of hard links; ``path`` is the source to read: the folder, or the prefix of files in it."""

    id: str
    path: Path


def record(db: sa.Engine, links: LinkFolder, executor: str) -> None:
    """Records a folder that an executor is about to make."""
    with db.begin() as connection:
        row = {"id": links.id, "path": str(links.path), "executor": executor}
        connection.execute(SCHEDULE_HOLDS.insert().values(row))


def assign(connection: sa.Connection, links: str, conversion: str) -> bool:
    """Assigns the folder to the conversion that will read it; False if the folder is gone."""
    change = SCHEDULE_HOLDS.update().where(_H.id == links, _H.conversion.is_(None))
    return bool(connection.execute(change.values(conversion=conversion)).rowcount)


def linked_source(db: sa.Engine, conversion: str) -> Path | None:
    """The folder of hard links, or the prefix in one, that a conversion reads instead of its source; None for most."""
    with db.connect() as connection:
        query = sa.select(_H.path).where(_H.conversion == conversion)
        found = connection.execute(query).scalar()
    return None if found is None else Path(found)


def release_ended(db: sa.Engine) -> None:
    """Releases the folders of conversions that have ended, or whose records are gone."""
    running = sa.select(CONVERSIONS.c.id).where(
        CONVERSIONS.c.id == _H.conversion, CONVERSIONS.c.state.not_in(ENDED)
    )
    ended = _H.conversion.is_not(None) & ~running.exists()
    with db.begin() as connection:
        freed = SCHEDULE_HOLDS.update().where(ended)
        connection.execute(freed.values(conversion=None, executor=NOBODY))


def unused(db: sa.Engine, heard_after: sa.ColumnElement[float]) -> list[LinkFolder]:
    """Folders that belong to no conversion and to no live process."""
    live = sa.select(EXECUTORS.c.id).where(EXECUTORS.c.heartbeat_at >= heard_after)
    query = sa.select(_H.id, _H.path).where(_H.conversion.is_(None), _H.executor.not_in(live))
    with db.connect() as connection:
        return [LinkFolder(row.id, Path(row.path)) for row in connection.execute(query)]


def forget(db: sa.Engine, links: str) -> None:
    """Forgets a removed folder, unless it was assigned to a conversion meanwhile."""
    with db.begin() as connection:
        connection.execute(SCHEDULE_HOLDS.delete().where(_H.id == links, _H.conversion.is_(None)))
