"""The parts of conversions as readers see them: their states, and the conversion's progress and revision with theirs.

A part's change is seen as a change of its conversion: the revision that clients see is the sum of the conversion's own and its parts'.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

import sqlalchemy as sa

from reshard_server.db.conversions.rows import moment
from reshard_server.db.tables import CONVERSIONS
from reshard_server.schemas.conversion import (
    Conversion,
    PartState,
    ProgressState,
)

_C = CONVERSIONS.c


@dataclass(slots=True)
class PartsSum:
    """The sum over the parts of one conversion.

    Attributes:
        counts: the number of parts in each state that occurs.
        bytes_per_second: of the parts that run.
    """

    counts: dict[str, int] = field(default_factory=dict)
    revision: int = 0
    moved_bytes: int = 0
    resumed_bytes: int = 0
    tasks_done: int = 0
    tasks: int = 0
    bytes_per_second: float = 0.0

    def progress(self, own: ProgressState) -> ProgressState:
        """The progress of the conversion: the parts' while they work, its own once they have succeeded."""
        if self.counts.keys() <= {"succeeded"}:
            done = own.total_bytes if self.counts else own.moved_bytes
            return own.model_copy(update={"moved_bytes": done, "resumed_bytes": self.resumed_bytes})
        moved = min(self.moved_bytes, own.total_bytes)
        rate = self.bytes_per_second or None
        return own.model_copy(
            update={
                "moved_bytes": moved,
                "resumed_bytes": self.resumed_bytes,
                "tasks_done": self.tasks_done,
                "tasks": self.tasks,
                "bytes_per_second": rate,
                "seconds_left": (own.total_bytes - moved) / rate if rate else None,
            }
        )


def _number(name: str) -> sa.ColumnElement[Any]:
    """The sum of a member of the parts' progress."""
    text = _C.progress[name].as_string()
    return sa.func.coalesce(sa.func.sum(sa.cast(text, sa.Float)), 0).label(name)


_SUMMED = ("moved_bytes", "resumed_bytes", "tasks_done", "tasks", "bytes_per_second")
_SUMS = (
    sa.select(
        _C.parent,
        _C.state,
        sa.func.count().label("many"),
        sa.func.sum(_C.revision).label("revisions"),
        *map(_number, _SUMMED),
    )
    .where(_C.parent.in_(sa.bindparam("of", expanding=True)))
    .group_by(_C.parent, _C.state)
)


def sums(connection: sa.Connection, conversions: Collection[str]) -> dict[str, PartsSum]:
    """The sum over the parts of each of these conversions."""
    found = {conversion: PartsSum() for conversion in conversions}
    if not found:
        return found
    for row in connection.execute(_SUMS, {"of": list(found)}):
        one = found[row.parent]
        one.counts[row.state] = row.many
        one.revision += int(row.revisions)
        for name in _SUMMED[:-1]:
            setattr(one, name, getattr(one, name) + int(row._mapping[name]))
        if row.state == "running":
            one.bytes_per_second += row.bytes_per_second
    return found


def read_bytes(db: sa.Engine, conversion: str) -> int:
    """Encoded bytes of the source that the parts of a conversion read."""
    query = sa.select(sa.func.sum(_C.read_bytes)).where(_C.parent == conversion)
    with db.connect() as connection:
        return int(connection.scalar(query) or 0)


def with_parts(
    connection: sa.Connection, conversions: Sequence[Conversion], *, listed: bool = False
) -> list[Conversion]:
    """The conversions with the counts, the progress and the revisions of their parts; ``listed``: also each part."""
    in_parts = [one.id for one in conversions if one.part_counts is not None]
    if not in_parts:
        return list(conversions)
    found = sums(connection, in_parts)
    states = _states(connection, in_parts) if listed else {}
    return [
        one if one.id not in found else _with_sum(one, found[one.id], states.get(one.id))
        for one in conversions
    ]


def _with_sum(
    conversion: Conversion, found: PartsSum, states: list[PartState] | None
) -> Conversion:
    own = conversion.progress
    return conversion.model_copy(
        update={
            "part_counts": found.counts,
            "parts": states,
            "progress": None if own is None else found.progress(own),
            "revision": conversion.revision + found.revision,
        }
    )


def _states(connection: sa.Connection, conversions: Collection[str]) -> dict[str, list[PartState]]:
    found: dict[str, list[PartState]] = {conversion: [] for conversion in conversions}
    query = sa.select(
        _C.parent, _C.part, _C.state, _C.host, _C.attempts, _C.progress, _C.error, _C.started_at, _C.ended_at
    ).where(_C.parent.in_(found)).order_by(_C.parent, _C.part)  # fmt: skip
    for row in connection.execute(query):
        found[row.parent].append(
            PartState(
                number=row.part,
                state=row.state,
                host=row.host,
                attempts=row.attempts,
                progress=ProgressState.model_validate(row.progress) if row.progress else None,
                error=row.error,
                started_at=None if row.started_at is None else moment(row.started_at),
                ended_at=None if row.ended_at is None else moment(row.ended_at),
            )
        )
    return found
