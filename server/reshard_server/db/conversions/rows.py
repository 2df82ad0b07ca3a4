"""Turns a row of the conversions' table into a ``Conversion``."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import sqlalchemy as sa
from pydantic import TypeAdapter, ValidationError

from reshard_server.db.other_versions import read, unreadable
from reshard_server.schemas.conversion import (
    Conversion,
    JobRequest,
    ProgressState,
    result_url,
)
from reshard_server.schemas.job import State

ENDED: frozenset[State] = frozenset({"succeeded", "failed", "cancelled"})

_REQUEST: TypeAdapter[JobRequest] = TypeAdapter(JobRequest)


def conversion_of(row: sa.Row[Any]) -> Conversion:
    """The conversion of a row. Raises UnreadableError for a row of another version that this one cannot read."""
    what = f"the conversion {row.id}"
    try:
        return _conversion(row, read(_REQUEST, row.request, what))
    except ValidationError as error:
        raise unreadable(what) from error


def _conversion(row: sa.Row[Any], request: JobRequest) -> Conversion:
    return Conversion(
        id=row.id,
        state=row.state,
        done=row.state in ENDED,
        request=request,
        progress=ProgressState.model_validate(row.progress) if row.progress else None,
        result=row.result,
        result_url=result_url(row.id) if row.state == "succeeded" and row.result is None else None,
        read_bytes=row.read_bytes,
        error=row.error,
        attempts=row.attempts,
        priority=row.priority,
        schedule=row.schedule,
        created_by=row.token,
        created_at=moment(row.created_at),
        started_at=None if row.started_at is None else moment(row.started_at),
        ended_at=None if row.ended_at is None else moment(row.ended_at),
        revision=row.revision,
    )


def moment(seconds: float) -> datetime:
    """The datetime of a recorded time."""
    return datetime.fromtimestamp(seconds, UTC)
