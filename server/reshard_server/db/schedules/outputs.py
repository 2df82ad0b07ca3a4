"""Outputs of schedules: which targets a schedule made, and how each is known again.

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
        template: the target as the schedule has it.
        identity: what tells it from anything else that may lie there later; None where it is expected.
    """

    id: str
    schedule: str
    template: str
    target: str
    step: int | None
    at: float
    conversion: str
    identity: str | None = None

    @classmethod
    def expected(
        cls, schedule: str, template: str, target: str, step: int | None, at: float, conversion: str
    ) -> Output:
        """One that a conversion is about to make."""
        text = hashlib.sha256(f"{schedule}\0{target}".encode()).hexdigest()
        return cls(text, schedule, template, target, step, at, conversion)


def expect(connection: sa.Connection, outputs: Iterable[Output]) -> None:
    """Records what a conversion is about to make; what was made at the same place before is no output any more."""
    for output in outputs:
        connection.execute(SCHEDULE_OUTPUTS.delete().where(_O.id == output.id))
        row = {name: getattr(output, name) for name in Output.__slots__}
        connection.execute(SCHEDULE_OUTPUTS.insert().values(**row, state="expected"))


def of_conversion(db: sa.Engine, conversion: str) -> list[Output]:
    """What a conversion was to make."""
    return _select(db, _O.conversion == conversion, _O.state == "expected")


def made(db: sa.Engine, schedule: str, template: str) -> list[Output]:
    """What is there of one target of a schedule."""
    return _select(db, _O.schedule == schedule, _O.template == template, _O.state == "made")


def being_removed(db: sa.Engine) -> list[Output]:
    """Outputs whose removal was begun."""
    return _select(db, _O.state == "removing")


def was_made(db: sa.Engine, schedule: str, step: int) -> bool:
    """Whether a step was converted by this schedule, as far as that is known."""
    return bool(_select(db, _O.schedule == schedule, _O.step == step, _O.state != "expected"))


def set_made(db: sa.Engine, output: Output, identity: str) -> None:
    """Its conversion succeeded."""
    _change(db, output, "expected", {"state": "made", "identity": identity})


def begin_removing(db: sa.Engine, output: Output) -> bool:
    """From now on it is to be removed; False where it is another's already."""
    return _change(db, output, "made", {"state": "removing"})


def forget(db: sa.Engine, output: Output) -> None:
    """It is no output any more."""
    with db.begin() as connection:
        connection.execute(SCHEDULE_OUTPUTS.delete().where(*_same(output)))


def _change(db: sa.Engine, output: Output, state: str, values: dict[str, Any]) -> bool:
    change = SCHEDULE_OUTPUTS.update().where(*_same(output), _O.state == state)
    with db.begin() as connection:
        return bool(connection.execute(change.values(values)).rowcount)


def _same(output: Output) -> tuple[sa.ColumnElement[bool], ...]:
    return _O.id == output.id, _O.conversion == output.conversion


def _select(db: sa.Engine, *where: sa.ColumnElement[bool]) -> list[Output]:
    with db.connect() as connection:
        rows = connection.execute(sa.select(SCHEDULE_OUTPUTS).where(*where)).all()
    return [Output(*(getattr(row, name) for name in Output.__slots__)) for row in rows]
