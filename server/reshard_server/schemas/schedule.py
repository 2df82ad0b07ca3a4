"""Schedules: conversions that come again, by the clock or with each new step of a training run."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal

from pydantic import Discriminator, Field, Tag

from reshard_server.schemas.base import (
    LARGEST_STEP,
    Answer,
    Document,
    Flag,
    Name,
    Number,
    RootedPath,
    Whole,
)
from reshard_server.schemas.conversion import Goals, Size, State


class Clock(Document):
    """By a cron expression, in UTC."""

    cron: str = Field(min_length=9, max_length=200, examples=["0 3 * * *"])
    source: RootedPath
    catch_up: Flag = Field(False, description="Run once after a downtime in which it was due.")


class NewSteps(Document):
    """With each committed step of a CheckpointManager's directory."""

    directory: RootedPath
    step_prefix: str | None = Field(
        None,
        min_length=1,
        max_length=100,
        pattern=r"^[^/]+$",
        description="As in CheckpointManagerOptions: folders are named PREFIX_STEP.",
    )
    step_digits: Whole | None = Field(
        None,
        ge=1,
        le=18,
        description="step_format_fixed_length of CheckpointManagerOptions: padded with zeros to this length.",
    )
    every: Whole = Field(1, ge=1, description="Only steps that are multiples of this.")
    first_step: Whole = Field(0, ge=0, le=LARGEST_STEP, description="No step before this one.")
    newest_only: Flag = Field(False, description="Of several new steps, only the last.")
    poll_seconds: Number = Field(10.0, ge=0.2, le=86400)


def _kind(when: object) -> str:
    """Which kind of ``when`` is meant, so that only the errors of that kind are told."""
    has = "directory" in when if isinstance(when, dict) else hasattr(when, "directory")
    return "NewSteps" if has else "Clock"


When = Annotated[
    Annotated[Clock, Tag("Clock")] | Annotated[NewSteps, Tag("NewSteps")], Discriminator(_kind)
]


class ScheduleBody(Document):
    """When, and what.

    In a target ``{step}`` stands for the step, ``{time}`` for when it was due (20261121T030000Z), and
    ``{name}`` for the schedule's name.
    """

    when: When
    targets: Goals
    keep: Whole | None = Field(None, ge=1, description="Outputs of each target that are kept.")
    priority: Whole = Field(0, ge=-100, le=100)
    max_memory: Size | None = None
    workers: Whole | None = Field(None, ge=1, le=256)
    paused: Flag = False


class Schedule(Answer):
    """A schedule as it stands."""

    name: Name
    schedule: ScheduleBody
    paused: bool
    created_by: str
    created_at: datetime
    updated_at: datetime
    next_at: datetime | None = Field(None, description="When a cron schedule is due next.")
    last: ScheduleRun | None = None
    revision: int


Outcome = Literal["holding", "started", "skipped", "gone", "refused", "paused"]


class ScheduleRun(Answer):
    """What one tick or one step led to.

    ``outcome`` is ``holding`` (the step is about to be converted), ``started`` (see the conversion and its
    state), ``skipped``, ``gone`` (the step was deleted before it could be converted), ``refused`` (no
    conversion could be made of it) or ``paused`` (the schedule paused itself); ``detail`` says why.
    """

    key: str = Field(description="The step, or the time at which it was due.")
    step: int | None = None
    at: datetime
    outcome: Outcome
    conversion: str | None = None
    state: State | None = Field(
        None, description="Of the conversion, as it stands; null where its record is gone."
    )
    detail: str | None = None


class SchedulePage(Answer):
    """By name."""

    schedules: list[Schedule]
    next_page_token: str | None = None


class RunPage(Answer):
    """Newest first."""

    runs: list[ScheduleRun]
    next_page_token: str | None = None


class RunNow(Document):
    """What is to be run now; without a step the newest, or the cron schedule's source."""

    step: Whole | None = Field(None, ge=0, le=LARGEST_STEP)


Schedule.model_rebuild()
