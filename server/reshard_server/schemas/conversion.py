"""Conversions: requests, and the documents of their state."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, get_args

from pydantic import Discriminator, Field, Strict, Tag, WithJsonSchema, create_model

from reshard import Stage, Target
from reshard.conversion.declared_options import OPTIONS
from reshard.conversion.options import LIBRARY_NAMES
from reshard.options import Option
from reshard_server.schemas.base import (
    Answer,
    CheckpointChoice,
    Flag,
    RequestDocument,
    RootedPath,
    UnlistedChoice,
    at_most,
    many,
    one,
    shown_request,
)
from reshard_server.schemas.delta import Deltas, OneDelta
from reshard_server.schemas.job import (
    JobOptions,
    MapContent,
    Pairs,
    Patterns,
    RunLimits,
    Size,
    Sizes,
    State,
)

_NAMES = {argument: name for name, argument in LIBRARY_NAMES.items()}

DECLARED: Mapping[str, Option] = {
    _NAMES.get(argument, argument): option
    for argument, option in OPTIONS.items()
    if option.is_for_clients
}
"""The options of a target that clients may give, by the name of their member."""

_DEFAULTS = Target("")
_TYPES: Mapping[str, Any] = {
    "flag": Flag,
    "size": Size | None,
    "text": str | None,
    "patterns": Patterns,
    "pairs": Pairs,
    "sizes": Sizes | None,
    "layout": str | dict[str, Any] | None,
    "map": MapContent,
    "place": RootedPath | None,
}


def _type_of(option: Option, default: Any) -> Any:
    """What a request may have for an option."""
    if option.kind == "choice":
        return option.words
    return str if isinstance(default, str) else _TYPES[option.kind]


def _members() -> dict[str, Any]:
    """The members of a model, one for each option."""
    found = {}
    for name, option in DECLARED.items():
        default = getattr(_DEFAULTS, LIBRARY_NAMES.get(name, name))
        field: Any = Field(
            default,
            description=option.description,
            examples=list(option.examples) if option.examples else None,
            max_length=option.max_length,
        )
        found[name] = (_type_of(option, default), field)
    return found


if TYPE_CHECKING:

    class TargetRequest(RequestDocument):
        """The members that the server looks into."""

        target: RootedPath
        layout: str | dict[str, Any] | None = None
        map: MapContent = None
        mesh: str | None = None
        config: RootedPath | None = None
        overwrite: bool = False
        restart: bool = False

else:
    TargetRequest = create_model(
        "TargetRequest",
        __base__=RequestDocument,
        __doc__="One target and its options, named as on the command line.",
        __module__=__name__,
        target=RootedPath,
        **_members(),
    )


def library_options(members: Mapping[str, Any]) -> dict[str, Any]:
    """Members of a target under the names of ``reshard.ConvertOptions``."""
    return {LIBRARY_NAMES.get(name, name): value for name, value in members.items()}


class SourceOptions(CheckpointChoice, UnlistedChoice, RunLimits):
    """The source, and the limits of the run."""

    checkpoint_member: ClassVar[str] = "source"

    source: RootedPath


TargetRequests = Annotated[
    tuple[TargetRequest, ...], Field(min_length=1, max_length=16), at_most(16)
]
Shares = Annotated[
    Flag,
    Field(description="Tell which share of each target shard's bytes was in which source shard."),
]


Latency = Annotated[
    float,
    Strict(),
    Field(gt=0, le=3600, description="How long a request to a bucket takes; without it 0.03."),
]
BytesPerSecond = Annotated[
    float,
    Strict(),
    Field(
        ge=1,
        le=1e15,
        description="Bandwidth from and to buckets, for the time; without it 150 MB/s.",
    ),
]


class PlanRequest(SourceOptions, TargetRequest):
    """A conversion that is only planned."""

    shares: Shares = False
    latency_s: Latency | None = None
    bytes_per_s: BytesPerSecond | None = None


class MultiPlanRequest(SourceOptions):
    """A conversion to several targets that is only planned."""

    targets: TargetRequests
    shares: Shares = False
    latency_s: Latency | None = None
    bytes_per_s: BytesPerSecond | None = None


class OneTarget(SourceOptions, JobOptions, TargetRequest):
    """A conversion to one target."""

    deltas: Deltas


class SeveralTargets(SourceOptions, JobOptions):
    """A conversion to several targets; the source is read once."""

    targets: TargetRequests


def _form(request: object) -> str:
    """The form of a request, so that only the errors of that form are reported."""
    has = "targets" in request if isinstance(request, dict) else hasattr(request, "targets")
    return "SeveralTargets" if has else "OneTarget"


ConversionRequest = Annotated[
    Annotated[OneTarget, Tag("OneTarget")] | Annotated[SeveralTargets, Tag("SeveralTargets")],
    Discriminator(_form),
]


def _kind(request: object) -> str:
    """As ``_form``, of what is recorded."""
    has = "old" in request if isinstance(request, dict) else hasattr(request, "old")
    return "OneDelta" if has else _form(request)


JobRequest = Annotated[
    Annotated[OneTarget, Tag("OneTarget")]
    | Annotated[SeveralTargets, Tag("SeveralTargets")]
    | Annotated[OneDelta, Tag("OneDelta")],
    Discriminator(_kind),
]
"""What is recorded: a delta is a conversion of a form of its own, in the same queue."""

AnyPlanRequest = Annotated[
    Annotated[PlanRequest, Tag("OneTarget")] | Annotated[MultiPlanRequest, Tag("SeveralTargets")],
    Discriminator(_form),
]


def targets_of(request: JobRequest | AnyPlanRequest) -> tuple[TargetRequest, ...]:
    """The targets of any form; of a delta what it has in common with a conversion."""
    if isinstance(request, SeveralTargets | MultiPlanRequest):
        return request.targets
    names = TargetRequest.model_fields.keys() & type(request).model_fields.keys()
    return (TargetRequest(**{name: getattr(request, name) for name in names}),)


def paths_of(request: JobRequest | AnyPlanRequest) -> tuple[str, ...]:
    """Every path that a request names: what is read, and each target with what it reads besides."""
    named = [(each.target, each.config) for each in targets_of(request)]
    more = (request.old,) if isinstance(request, OneDelta) else getattr(request, "deltas", ())
    return (request.source, *more, *(path for pair in named for path in pair if path is not None))


class ProgressState(Answer):
    """The progress of a run; bytes are decoded bytes of the source."""

    stage: Annotated[str, WithJsonSchema({"type": "string", "enum": list(get_args(Stage))})]
    moved_bytes: int
    total_bytes: int
    resumed_bytes: int = 0
    tasks_done: int
    tasks: int
    tensor: str
    bytes_per_second: float | None = None
    seconds_left: float | None = None


class Conversion(Answer):
    """A conversion and its state."""

    id: str
    state: State
    done: bool
    request: Annotated[JobRequest, shown_request("OneTarget", "SeveralTargets", "OneDelta")]
    progress: ProgressState | None = None
    result: Annotated[list[dict[str, Any]], many("TargetReport", "DeltaReport")] | None = Field(
        None,
        description="The report of each target, with digests (docs/reference/json-output.md, convert), or that of the delta (delta); null in "
        "listings.",
    )
    result_url: str | None = Field(
        None,
        description="URL of the whole result; in listings and events, which have none or a summary.",
        examples=["/v1/conversions/019d7c3a5b1e9f2c6d8e4a7b0c31"],
    )
    read_bytes: int | None = Field(
        None,
        description="Encoded bytes of the source that the successful attempt read, for all targets; null for a delta.",
    )
    error: Annotated[dict[str, Any], one("Problem")] | None = Field(
        None, description="Why it failed."
    )
    attempts: int = 0
    priority: int = 0
    schedule: str | None = None
    created_by: str
    created_at: datetime
    started_at: datetime | None = None
    ended_at: datetime | None = None
    revision: int = Field(description="Grows with every change; ids of events are revisions.")


def result_url(conversion: str) -> str:
    """The URL of a conversion's whole result."""
    return f"/v1/conversions/{conversion}"


class ConversionPage(Answer):
    """Conversions, newest first."""

    conversions: list[Conversion]
    next_page_token: str | None = None
