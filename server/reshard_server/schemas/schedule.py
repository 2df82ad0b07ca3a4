"""Schedules: conversions at given times, or of each new step of a training run."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, ClassVar, Literal

from pydantic import Discriminator, Field, Tag

from reshard_server.schemas.base import (
    LARGEST_STEP,
    Answer,
    CheckpointChoice,
    Flag,
    Name,
    Number,
    RequestDocument,
    RootedPath,
    Whole,
    shown_request,
)
from reshard_server.schemas.conversion import (
    DeltaForm,
    State,
    TargetRequests,
)
from reshard_server.schemas.job_options import (
    Notify,
    PartOptions,
    Size,
)


class Clock(CheckpointChoice):
    """At the times of a cron expression, in UTC; ``step`` and ``item`` are looked up at each run."""

    checkpoint_member: ClassVar[str] = "source"

    cron: str = Field(min_length=9, max_length=200, examples=["0 3 * * *"])
    source: RootedPath
    catch_up: Flag = Field(False, description="Run once after a downtime in which a run was due.")


class NewSteps(RequestDocument):
    """For each finished step in the directory of a training run, of any format that is read."""

    directory: RootedPath
    step_prefix: str | None = Field(
        None,
        min_length=1,
        max_length=100,
        pattern=r"^[^/]+$",
        description="As in CheckpointManagerOptions: folders are named PREFIX_STEP, or PREFIX-STEP as transformers (checkpoint), "
        "torchtitan (step) and TensorFlow (ckpt) do. Without it, plain numbers; where there are none, names as reshard steps takes them.",
    )
    step_digits: Whole | None = Field(
        None,
        ge=1,
        le=18,
        description="step_format_fixed_length of CheckpointManagerOptions: padded with zeros to this length.",
    )
    every: Whole = Field(1, ge=1, description="Only steps that are multiples of this.")
    first_step: Whole = Field(0, ge=0, le=LARGEST_STEP, description="Skip steps before this one.")
    newest_only: Flag = Field(
        False,
        description="Of several new steps, convert only the last; steps that come while a conversion of the schedule waits are compared too.",
    )
    poll_seconds: Number | None = Field(
        None,
        ge=0.2,
        le=86400,
        description="Seconds between two looks; without it a tenth of the time since the last new step, at least 1 and at most 10.",
    )


def _kind(when: object) -> str:
    """The kind of ``when``, so that only the errors of that kind are reported."""
    has = "directory" in when if isinstance(when, dict) else hasattr(when, "directory")
    return "NewSteps" if has else "Clock"


When = Annotated[
    Annotated[Clock, Tag("Clock")] | Annotated[NewSteps, Tag("NewSteps")], Discriminator(_kind)
]


class PublishedVersions(DeltaForm):
    """Each new step becomes a version of the weights: a delta on the one before, or a full version."""

    anchor_every: Whole = Field(
        20,
        ge=1,
        le=1000,
        description="Every so many versions one is a full version, from which receivers can begin; with 1 all are.",
    )


class ScheduleBody(PartOptions):
    """The times of conversions, and their targets.

    In a target ``{step}`` stands for the step, ``{time}`` for when it was due (20261121T030000Z), and
    ``{name}`` for the schedule's name. With ``delta`` the one target is ``FOLDER/weight_v{version}``: the number of the version, consecutive
    from 1.
    """

    when: When
    targets: TargetRequests
    delta: PublishedVersions | None = Field(
        None,
        exclude_if=lambda value: value is None,
        description="Publish each new step as a delta on the version before.",
    )
    keep: Whole | None = Field(
        None,
        ge=1,
        description="Number of outputs of each target to keep; of versions also those on which they stand.",
    )
    priority: Whole = Field(0, ge=-100, le=100)
    max_memory: Size | None = None
    workers: Whole | None = Field(None, ge=1, le=256)
    notify: Notify
    paused: Flag = False


class Schedule(Answer):
    """A schedule and its state."""

    name: Name
    schedule: Annotated[ScheduleBody, shown_request("ScheduleBody")]
    paused: bool
    created_by: str
    created_at: datetime
    updated_at: datetime
    next_at: datetime | None = Field(None, description="The next time of a cron schedule.")
    last: ScheduleRun | None = None
    revision: int


Outcome = Literal["holding", "started", "skipped", "gone", "refused", "paused"]


class ScheduleRun(Answer):
    """The outcome of one tick or one step.

    ``outcome`` is ``holding`` (the step is about to be converted), ``started`` (see the conversion and its
    state), ``skipped``, ``gone`` (the step was deleted before it could be converted), ``refused`` (no
    conversion was possible) or ``paused`` (the schedule paused itself); ``detail`` says why.
    """

    key: str = Field(description="The step, or the time when the run was due.")
    step: int | None = None
    at: datetime
    outcome: Outcome
    conversion: str | None = None
    state: State | None = Field(
        None, description="The conversion's current state; null if its record was deleted."
    )
    detail: str | None = None


class SchedulePage(Answer):
    """Schedules by name."""

    schedules: list[Schedule]
    next_page_token: str | None = None


class RunPage(Answer):
    """Runs, newest first."""

    runs: list[ScheduleRun]
    next_page_token: str | None = None


class RunNow(RequestDocument):
    """The step to run now; without one the newest step, or the cron schedule's source."""

    step: Whole | None = Field(None, ge=0, le=LARGEST_STEP)


Schedule.model_rebuild()
