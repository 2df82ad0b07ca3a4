"""Outputs of schedules: the targets that a schedule made, each with a stamp that identifies it later.

::

    expected ──its conversion succeeded──▶ made ──too many──▶ removing ──removed──▶ (none)
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from reshard_server.db.tables import SCHEDULE_OUTPUTS

_O = SCHEDULE_OUTPUTS.c


@dataclass(frozen=True, slots=True)
class Output:
    """A target that a schedule made, or may make.

    Attributes:
        template: the target in the schedule, with its fields.
        stamp: distinguishes this output from anything else at its path; None while it is expected.
    """

    id: str
    schedule: str
    template: str
    target: str
    step: int | None
    at: float
    conversion: str
    stamp: str | None = None

    @classmethod
    def expected(
        cls, schedule: str, template: str, target: str, step: int | None, at: float, conversion: str
    ) -> Output:
        """An output that a conversion is about to make."""
        text = hashlib.sha256(f"{schedule}\0{target}".encode()).hexdigest()
        return cls(text, schedule, template, target, step, at, conversion)


def expect(connection: sa.Connection, outputs: Iterable[Output]) -> None:
    """Records the outputs that a conversion is about to make; they replace earlier outputs at the same paths."""
    for output in outputs:
        connection.execute(SCHEDULE_OUTPUTS.delete().where(_O.id == output.id))
        row = {name: getattr(output, name) for name in Output.__slots__}
        connection.execute(SCHEDULE_OUTPUTS.insert().values(**row, state="expected"))


def of_conversion(db: sa.Engine, conversion: str) -> list[Output]:
    """The outputs that a conversion is expected to make."""
    return _select(db, _O.conversion == conversion, _O.state == "expected")


def made(db: sa.Engine, schedule: str, template: str) -> list[Output]:
    """The outputs that were made for one target of a schedule."""
    return _select(db, _O.schedule == schedule, _O.template == template, _O.state == "made")


def being_removed(db: sa.Engine) -> list[Output]:
    """Outputs whose removal has begun."""
    return _select(db, _O.state == "removing")


def was_made(db: sa.Engine, schedule: str, step: int) -> bool:
    """True if the records know an output of this step."""
    return bool(_select(db, _O.schedule == schedule, _O.step == step, _O.state != "expected"))


def last_at(db: sa.Engine, schedule: str) -> float:
    """The latest time in the names of the outputs; 0 if there are none."""
    query = sa.select(sa.func.max(_O.at)).where(_O.schedule == schedule)
    with db.connect() as connection:
        return connection.execute(query).scalar() or 0.0


def set_made(db: sa.Engine, output: Output, stamp: str) -> None:
    """Notes that the output's conversion succeeded."""
    _change(db, output, "expected", {"state": "made", "stamp": stamp})


def begin_removing(db: sa.Engine, output: Output) -> bool:
    """Marks the output for removal; False if a later conversion replaced it."""
    return _change(db, output, "made", {"state": "removing"})


def forget(db: sa.Engine, output: Output) -> None:
    """Deletes the record of the output."""
    with db.begin() as connection:
        connection.execute(SCHEDULE_OUTPUTS.delete().where(*_same(output)))


def _change(db: sa.Engine, output: Output, state: str, values: dict[str, Any]) -> bool:
    change = SCHEDULE_OUTPUTS.update().where(*_same(output), _O.state == state)
    with db.begin() as connection:
        return bool(connection.execute(change.values(values)).rowcount)


def _same(output: Output) -> tuple[sa.ColumnElement[bool], ...]:
    # Against a later conversion that made another output at the same path.
    return _O.id == output.id, _O.conversion == output.conversion


def _select(db: sa.Engine, *where: sa.ColumnElement[bool]) -> list[Output]:
    with db.connect() as connection:
        rows = connection.execute(sa.select(SCHEDULE_OUTPUTS).where(*where)).all()
    return [Output(*(row._mapping[_O[name]] for name in Output.__slots__)) for row in rows]
