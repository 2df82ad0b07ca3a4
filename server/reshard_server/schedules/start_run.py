"""Starts a run: fills in the schedule's targets and queues the conversion."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import sqlalchemy as sa

from reshard_server.db.conversions import conversions
from reshard_server.db.conversions.conversions import New
from reshard_server.db.schedules import outputs as schedule_outputs
from reshard_server.db.schedules.outputs import Output
from reshard_server.db.schedules.schedules import StoredSchedule
from reshard_server.schedules.scheduling import Scheduling
from reshard_server.schedules.templates import filled, values_of
from reshard_server.schemas.conversion import (
    ConversionRequest,
    OneTarget,
    SeveralTargets,
    TargetRequest,
    targets_of,
)
from reshard_server.schemas.schedule import ScheduleBody


@dataclass(frozen=True, slots=True)
class Occasion:
    """What one run converts.

    Attributes:
        at: the time in the targets' names.
        again: an earlier run may have left unfinished work. It is thrown away, since that run read the step from
            other hard links.
    """

    source: str
    at: float
    step: int | None = None
    again: bool = False


class QueueFullError(Exception):
    """The schedule's token has as many waiting conversions as it may have."""


def request_of(name: str, body: ScheduleBody, occasion: Occasion) -> ConversionRequest:
    """The conversion's request; not checked."""
    values = values_of(name, occasion.at, occasion.step)
    targets = tuple(_target(requested, values, again=occasion.again) for requested in body.targets)
    labels = {"schedule": name} | ({} if occasion.step is None else {"step": str(occasion.step)})
    shared = {
        "source": occasion.source,
        "max_memory": body.max_memory,
        "workers": body.workers,
        "priority": body.priority,
        "labels": labels,
    }
    if len(targets) == 1:
        return OneTarget.model_validate({**shared, **targets[0].model_dump()})
    return SeveralTargets.model_validate({**shared, "targets": targets})


def insert_conversion(
    connection: sa.Connection,
    scheduling: Scheduling,
    stored: StoredSchedule,
    request: ConversionRequest,
    occasion: Occasion,
) -> str:
    """Queues the conversion and records its expected outputs; returns its id. Raises QueueFullError."""
    token = stored.token
    if conversions.count_queued(connection, token) >= scheduling.settings.queued_per_token:
        raise QueueFullError(
            f"{scheduling.settings.queued_per_token} conversions of the token {token!r} wait already, the most that may wait"
        )
    [made] = conversions.insert(connection, [New(token, request, stored.name)])
    outputs = _outputs(stored, targets_of(request), occasion, made.id)
    schedule_outputs.expect(connection, outputs)
    return made.id


def _target(requested: TargetRequest, values: dict[str, str], *, again: bool) -> TargetRequest:
    filled_in = {"target": filled(requested.target, values), "restart": requested.restart or again}
    return requested.model_copy(update=filled_in)


def _outputs(
    stored: StoredSchedule, made: Sequence[TargetRequest], occasion: Occasion, conversion: str
) -> list[Output]:
    return [
        Output.expected(
            stored.name, requested.target, target.target, occasion.step, occasion.at, conversion
        )
        for requested, target in zip(stored.body.targets, made, strict=True)
    ]
