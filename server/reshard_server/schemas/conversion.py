"""Conversions: requests, and the documents of their state."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Any, ClassVar, Literal, get_args

from pydantic import Discriminator, Field, Strict, Tag, WithJsonSchema

from reshard import Check, FilesOf, FormatName, MissingChunks, Stage, Style, Target
from reshard_server.schemas.base import (
    Answer,
    CheckpointChoice,
    Flag,
    MissingAxes,
    RequestDocument,
    RootedPath,
    UnlistedChoice,
    Whole,
    at_most,
    many,
    one,
)

State = Literal["queued", "running", "cancelling", "succeeded", "failed", "cancelled"]

Pattern = Annotated[str, Field(min_length=1, max_length=1000)]
Pair = tuple[Pattern, Annotated[str, Field(max_length=1000)]]
Patterns = Annotated[tuple[Pattern, ...], Field(max_length=1000, fail_fast=True), at_most(1000)]
Pairs = Annotated[tuple[Pair, ...], Field(max_length=1000, fail_fast=True), at_most(1000)]
Size = Annotated[
    str | Whole, Field(description="Bytes, or text such as 512MiB.", examples=["512MiB"])
]


LIBRARY_NAMES = {"verify": "check"}
"""Members of a target that have another name in the library."""

_DEFAULTS = Target("")


class TargetRequest(RequestDocument):
    """One target and its options, named as on the command line."""

    target: RootedPath
    layout: str | dict[str, Any] | None = Field(
        None,
        description="Name of a stored layout (name or name@version), or the content of a layout file.",
        examples=[{"mesh": {"axes": ["model"], "shape": [8]}, "rules": []}],
    )
    mesh: str | None = Field(None, max_length=1000, examples=["data=4,model=2"])
    missing_axes: MissingAxes = _DEFAULTS.missing_axes
    select: Patterns = ()
    drop: Patterns = ()
    rename: Pairs = Field((), description="[pattern, replacement] each.")
    cast: Pairs = Field(
        (),
        description="[pattern, dtype] each; float, int, complex, bool or a dtype in place of the pattern takes every tensor of it.",
        examples=[[["float", "bfloat16"]]],
    )
    compression: str = Field(_DEFAULTS.compression, max_length=32, examples=["zstd:3"])
    chunk_bytes: Size | None = _DEFAULTS.chunk_bytes
    ocdbt: Flag = _DEFAULTS.ocdbt
    style: Style | None = _DEFAULTS.style
    to: FormatName | None = Field(
        _DEFAULTS.to,
        description="Format of the target; without it safetensors where the target ends in .safetensors, else the source's.",
    )
    files: FilesOf | None = Field(
        _DEFAULTS.files, description="Files of a safetensors target; shards where it is a folder."
    )
    file_bytes: Size | None = _DEFAULTS.file_bytes
    file_names: str | None = Field(
        _DEFAULTS.file_names, max_length=200, examples=["part-{number:03d}.safetensors"]
    )
    carry: Flag = Field(
        _DEFAULTS.carry,
        description="Copy the files beside the weights of a safetensors source, and folders of at most 64 MiB.",
    )
    missing_chunks: MissingChunks | None = Field(
        _DEFAULTS.missing_chunks,
        description="Chunks of the source that are not stored: refuse them, or take the fill value with or without a warning; "
        "without it they are refused where the source records that it stores every chunk, else a warning tells.",
    )
    overwrite: Flag = _DEFAULTS.overwrite
    restart: Flag = Field(_DEFAULTS.restart, description="Discard an earlier attempt's work.")
    verify: Check = _DEFAULTS.check


def library_options(members: Mapping[str, Any]) -> dict[str, Any]:
    """Members of a target under the names of ``reshard.ConvertOptions``."""
    return {LIBRARY_NAMES.get(name, name): value for name, value in members.items()}


class SourceOptions(CheckpointChoice, UnlistedChoice):
    """The source, and the limits of the run."""

    checkpoint_member: ClassVar[str] = "source"

    source: RootedPath
    max_memory: Size | None = Field(None, description="At most the server's ceiling.")
    workers: Whole | None = Field(None, ge=1, le=256)


Labels = Annotated[
    dict[Annotated[str, Field(max_length=64)], Annotated[str, Field(max_length=256)]],
    Field(max_length=32),
    at_most(32),
]

Seconds = Annotated[float, Strict(), Field(ge=1, le=31_536_000)]

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


class _JobOptions(SourceOptions):
    priority: Whole = Field(
        0,
        ge=-100,
        le=100,
        description="Of a token's conversions the higher ones are started first.",
    )
    run_seconds: Seconds | None = Field(
        None,
        description="How long it may run; at most the server's setting. Then it fails, and a retry resumes it.",
    )
    no_progress_seconds: Seconds | None = Field(
        None,
        description="How long it may run without moving anything; at most the server's setting.",
    )
    labels: Labels = Field(default_factory=dict)


class OneTarget(_JobOptions, TargetRequest):
    """A conversion to one target."""


class SeveralTargets(_JobOptions):
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

AnyPlanRequest = Annotated[
    Annotated[PlanRequest, Tag("OneTarget")] | Annotated[MultiPlanRequest, Tag("SeveralTargets")],
    Discriminator(_form),
]


def targets_of(request: ConversionRequest | AnyPlanRequest) -> tuple[TargetRequest, ...]:
    """The targets of either form."""
    if isinstance(request, SeveralTargets | MultiPlanRequest):
        return request.targets
    return (TargetRequest(**{name: getattr(request, name) for name in TargetRequest.model_fields}),)


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
    request: ConversionRequest
    progress: ProgressState | None = None
    result: Annotated[list[dict[str, Any]], many("TargetReport")] | None = Field(
        None,
        description="The report of each target, with digests (docs/reference/json-output.md, convert); null in listings.",
    )
    result_url: str | None = Field(
        None,
        description="URL of the whole result; in listings and events, which have none or a summary.",
        examples=["/v1/conversions/019d7c3a5b1e9f2c6d8e4a7b0c31"],
    )
    read_bytes: int | None = Field(
        None,
        description="Encoded bytes of the source that the successful attempt read, for all targets.",
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
