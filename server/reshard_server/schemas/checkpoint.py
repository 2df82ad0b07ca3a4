"""Requests about checkpoints, and their answers."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field

from reshard_server.schemas.base import (
    Answer,
    CheckpointChoice,
    Flag,
    Page,
    RootedPath,
    UnlistedChoice,
)
from reshard_server.schemas.conversion import Pairs, Patterns, Size
from reshard_server.schemas.reports import (
    InspectedTensor,
    ItemReport,
    LaidOutTensor,
    LeafReport,
    MissingNumbers,
    PlannedRequests,
    PlannedTensor,
    PlanTotals,
    RecordedMesh,
    TensorDigest,
    VerifiedFile,
    VerifiedLeaf,
    VerifiedRules,
    VerifiedTensor,
    many,
    one,
)


class CheckpointQuery(Page):
    """The root and the folder to list."""

    root: str = Field(max_length=128, description="Name of a storage root.", examples=["data"])
    prefix: str = Field(
        "",
        max_length=4096,
        description="A folder below the root; only checkpoints in it are listed.",
    )


class CheckpointRequest(CheckpointChoice, UnlistedChoice):
    """One checkpoint."""

    checkpoint: RootedPath


class FingerprintRequest(CheckpointChoice):
    """A checkpoint whose digests are recorded beside its metadata."""

    checkpoint: RootedPath
    overwrite: Flag = Field(False, description="Replace an existing record.")
    max_memory: Size | None = None


class VerifyRequest(CheckpointRequest):
    """A checkpoint to compare with ``other``, or with its own recorded digests.

    ``other`` records the rules by which it was made from ``checkpoint``; rules in the request replace all of them.
    """

    other: RootedPath | None = Field(None, description="Its own path; step and item do not apply.")
    select: Patterns | None = None
    drop: Patterns | None = None
    rename: Pairs | None = Field(None, description="[pattern, replacement] each.")
    cast: Pairs | None = Field(None, description="[pattern, dtype] each.")
    max_memory: Size | None = None


class FoundCheckpoint(Answer):
    """A checkpoint below a root, or the folder of a training run's steps."""

    path: RootedPath
    kind: str = Field(
        description="The checkpoint's format, orbax or safetensors; or steps, for the directory of a training run."
    )
    steps: list[int] | None = Field(default=None, description="Committed steps, ascending.")
    folders: list[str] | None = Field(
        default=None,
        description="The name of each step's folder below the path, in the same order.",
    )
    modified_at: datetime | None = Field(
        description="When the folder last changed; null in a bucket, whose folders have no time."
    )


class CheckpointPage(Answer):
    """Checkpoints by path; a page may be short or empty without being the last."""

    checkpoints: list[FoundCheckpoint]
    next_page_token: str | None = None


class _CommandAnswer(Answer):
    """The JSON object of a command (docs/reference/json-output.md); it may have further members."""

    model_config = ConfigDict(frozen=True, extra="allow")

    warnings: list[str] = Field(default_factory=list)


class Inspection(_CommandAnswer):
    """What ``reshard inspect --json`` prints."""

    command: Literal["inspect"]
    uri: RootedPath
    format: str
    style: str | None = Field(
        description="Orbax's form of the checkpoint, v0 or v1; null in other formats."
    )
    nbytes: int
    tensors: Annotated[list[dict[str, Any]], many(InspectedTensor)]
    items: Annotated[list[dict[str, Any]], many(ItemReport)]
    meshes: Annotated[list[dict[str, Any]], many(RecordedMesh)]
    leaves: Annotated[list[dict[str, Any]], many(LeafReport)]


class VerificationAnswer(_CommandAnswer):
    """What ``reshard verify --json`` prints; differences are an answer, not a problem."""

    command: Literal["verify"]
    a: RootedPath
    b: RootedPath | None
    equal: bool
    differences: int
    damage: list[str]
    rules: Annotated[dict[str, Any], one(VerifiedRules)] | None = Field(
        None,
        description="The rules by which B was made from A; null if tensors are compared by name.",
    )
    dropped: list[str] = Field(
        default_factory=list, description="Tensors of A that the rules leave out of B."
    )
    missing_chunks: dict[str, MissingNumbers] = Field(
        default_factory=dict, description="Of A and of B, the chunks that are not stored."
    )
    files: Annotated[list[dict[str, Any]], many(VerifiedFile)]
    tensors: Annotated[list[dict[str, Any]], many(VerifiedTensor)]
    leaves: Annotated[list[dict[str, Any]], many(VerifiedLeaf)] = Field(
        default_factory=list,
        description="Leaves that are not a tensor on both sides: strings, None, empty containers.",
    )


class FingerprintAnswer(_CommandAnswer):
    """What ``reshard fingerprint --json`` prints."""

    command: Literal["fingerprint"]
    uri: RootedPath
    files: int
    nbytes: int
    written: list[str]
    tensors: Annotated[list[dict[str, Any]], many(TensorDigest)]
    seconds: float


class LayoutAnswer(_CommandAnswer):
    """What ``reshard layout --json`` prints; shapes and bytes are the largest shard's."""

    command: Literal["layout"]
    file: str = Field(description="The stored layout's name, if the request names one.")
    source: RootedPath
    tensors: Annotated[list[dict[str, Any]], many(LaidOutTensor)]
    device_bytes: int = Field(description="Bytes on each device of the mesh.")
    partitioned_bytes: int = Field(
        description="Bytes of tensors that are split by count or size instead."
    )


class PlanAnswer(_CommandAnswer):
    """What ``reshard plan --json`` prints."""

    command: Literal["plan"]
    source: RootedPath
    target: RootedPath
    tensors: Annotated[list[dict[str, Any]], many(PlannedTensor)]
    totals: Annotated[dict[str, Any], one(PlanTotals)]
    carried: list[str]
    dropped: list[str]
    missing_chunks: MissingNumbers = Field(default_factory=dict)
    free_bytes: int | None
    requests: PlannedRequests | None = Field(
        None,
        description="Requests to buckets; null if nothing is in one, and for each of several targets.",
    )


class MultiPlanAnswer(_CommandAnswer):
    """What ``reshard plan --json`` prints for several targets, with the totals of all."""

    command: Literal["plan"]
    source: RootedPath
    plans: list[PlanAnswer]
    reads: int = Field(description="Reads; targets that share a decoded chunk count once.")
    tasks: int
    source_bytes: int
    decoded_bytes: int
    repeated_bytes: int = Field(
        description="Bytes that are decoded more than once, because that saves memory or time."
    )
    written_bytes: int
    amplification: float
    peak_bytes: int
    requests: PlannedRequests | None = Field(
        None, description="Requests to buckets for all targets; null if nothing is in one."
    )
