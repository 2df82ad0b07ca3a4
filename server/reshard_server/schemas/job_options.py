"""The options of a job beside its work: limits of memory and time, parts and hosts, labels, and the URLs that are told of its end."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, Strict

from reshard.storage.parts import MAX_PARTS
from reshard_server.schemas.base import RequestDocument, Whole, at_most

Size = Annotated[
    str | Whole, Field(description="Bytes, or text such as 512MiB.", examples=["512MiB"])
]

Labels = Annotated[
    dict[Annotated[str, Field(max_length=64)], Annotated[str, Field(max_length=256)]],
    Field(max_length=32),
    at_most(32),
]

LONGEST_URL = 2048
"""Longer URLs are not taken everywhere: some servers and proxies stop here."""

MOST_RECEIVERS = 8

Notify = Annotated[
    tuple[Annotated[str, Field(min_length=1, max_length=LONGEST_URL)], ...],
    Field(
        default=(),
        max_length=MOST_RECEIVERS,
        exclude_if=lambda value: value == (),
        description="URLs that get one signed POST when the conversion has ended (docs/how-to/service/webhooks.md).",
        examples=[["https://hooks.example/reshard"]],
    ),
    at_most(MOST_RECEIVERS),
]

Parts = Literal["auto"] | Annotated[int, Strict(), Field(ge=1, le=MAX_PARTS)]
Engine = Literal["replicas", "ray", "kubernetes"]

Seconds = Annotated[float, Strict(), Field(ge=1, le=31_536_000)]


class RunLimits(RequestDocument):
    """Limits of a run's memory and threads."""

    max_memory: Size | None = Field(None, description="At most the server's ceiling.")
    workers: Whole | None = Field(None, ge=1, le=256)


class PartOptions(RequestDocument):
    """The parts of a job, and the hosts that may take it."""

    parts: Parts | None = Field(
        None,
        description="Run as so many parts on all hosts that share the records, or as many as are useful (auto); null: on one host.",
    )
    engine: Engine = Field("replicas", description="With parts: what runs them.")
    host_labels: Labels = Field(
        default_factory=dict, description="Labels that a host must have to take it."
    )


class JobOptions(PartOptions, RunLimits):
    """The start of a job, its time limits, and the labels by which it is found."""

    priority: Whole = Field(
        0,
        ge=-100,
        le=100,
        description="Of a token's conversions the higher ones are started first.",
    )
    run_seconds: Seconds | None = Field(
        None,
        description="Seconds that it may run; at most the server's setting. Then it fails, and a retry resumes it.",
    )
    no_progress_seconds: Seconds | None = Field(
        None,
        description="Seconds that it may run without moving anything; at most the server's setting.",
    )
    labels: Labels = Field(default_factory=dict)
    notify: Notify
