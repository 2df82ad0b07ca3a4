"""Members that the requests of conversions and of deltas share: rules, sizes, and the limits of a run."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, Strict

from reshard_server.schemas.base import RequestDocument, Whole, at_most

State = Literal["queued", "running", "cancelling", "succeeded", "failed", "cancelled"]

Pattern = Annotated[str, Field(min_length=1, max_length=1000)]
Pair = tuple[Pattern, Annotated[str, Field(max_length=1000)]]
Patterns = Annotated[tuple[Pattern, ...], Field(max_length=1000, fail_fast=True), at_most(1000)]
Pairs = Annotated[tuple[Pair, ...], Field(max_length=1000, fail_fast=True), at_most(1000)]
Sizes = Annotated[
    dict[Annotated[str, Field(max_length=64)], Annotated[int, Strict(), Field(ge=1, le=1 << 40)]],
    Field(max_length=1000),
    at_most(1000),
]
MapContent = str | dict[str, Any] | None
Size = Annotated[
    str | Whole, Field(description="Bytes, or text such as 512MiB.", examples=["512MiB"])
]

Labels = Annotated[
    dict[Annotated[str, Field(max_length=64)], Annotated[str, Field(max_length=256)]],
    Field(max_length=32),
    at_most(32),
]

Seconds = Annotated[float, Strict(), Field(ge=1, le=31_536_000)]


class RunLimits(RequestDocument):
    """What a run may use of the server."""

    max_memory: Size | None = Field(None, description="At most the server's ceiling.")
    workers: Whole | None = Field(None, ge=1, le=256)


class JobOptions(RunLimits):
    """When a job is started, how long it may run, and how it is found."""

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
