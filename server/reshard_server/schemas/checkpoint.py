"""Checkpoints: what can be asked of one that is there, and the answers."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field

from reshard_server.schemas.base import Answer, Flag, OfRun, Page, RootedPath
from reshard_server.schemas.conversion import Pairs, Patterns, Size
from reshard_server.schemas.reports import (
    InspectedTensor,
    Item,
    LaidOutTensor,
    Leaf,
    PlannedTensor,
    PlanTotals,
    RecordedMesh,
    TensorDigest,
    VerifiedFile,
    VerifiedRules,
    VerifiedTensor,
    many,
    one,
)


class CheckpointQuery(Page):
    """Where to look."""

    root: str = Field(max_length=128, description="Name of a storage root.", examples=["data"])
    prefix: str = Field(
        "", max_length=4096, description="A folder below the root; only what is in it is listed."
    )


class CheckpointRequest(OfRun):
    """One checkpoint."""

    checkpoint: RootedPath


class FingerprintRequest(CheckpointRequest):
    """Digests are recorded beside the checkpoint's metadata."""

    overwrite: Flag = Field(False, description="Replace a record that is there.")
    max_memory: Size | None = None


class VerifyRequest(CheckpointRequest):
    """Against ``other``, or against what it recorded of itself.

    ``other`` records the rules by which it was made of ``checkpoint``; those that are given replace them all.
    """

    other: RootedPath | None = Field(None, description="Its own path; step and item do not apply.")
    select: Patterns | None = None
    drop: Patterns | None = None
    rename: Pairs | None = Field(None, description="[pattern, replacement] each.")
    cast: Pairs | None = Field(None, description="[pattern, dtype] each.")
    max_memory: Size | None = None


class FoundCheckpoint(Answer):
    """A checkpoint below a root, or a training run's folder of them."""

    path: RootedPath
    kind: Literal["orbax", "steps"] = Field(
        description="orbax; or steps, for a CheckpointManager's directory."
    )
    steps: list[int] | None = Field(default=None, description="Committed steps, ascending.")
    folders: list[str] | None = Field(
        default=None, description="Name of each step's folder below the path, in the same order."
    )
    modified_at: datetime


class CheckpointPage(Answer):
    """By path; a page may be short, or empty, and yet not the last."""

    checkpoints: list[FoundCheckpoint]
    next_page_token: str | None = None


class _Told(Answer):
    """The object of a command (docs/reference/json-output.md); further members may follow."""

    model_config = ConfigDict(frozen=True, extra="allow")

    warnings: list[str] = Field(default_factory=list)


class Inspection(_Told):
    """What ``reshard inspect --json`` tells."""

    command: Literal["inspect"]
    uri: RootedPath
    format: str
    style: str
    nbytes: int
    tensors: Annotated[list[dict[str, Any]], many(InspectedTensor)]
    items: Annotated[list[dict[str, Any]], many(Item)]
    meshes: Annotated[list[dict[str, Any]], many(RecordedMesh)]
    leaves: Annotated[list[dict[str, Any]], many(Leaf)]


class VerificationAnswer(_Told):
    """What ``reshard verify --json`` tells; differences are an answer, not a problem."""

    command: Literal["verify"]
    a: RootedPath
    b: RootedPath | None
    equal: bool
    differences: int
    damage: list[str]
    rules: Annotated[dict[str, Any], one(VerifiedRules)] | None = Field(
        None, description="By which B was made of A; null where names are compared."
    )
    dropped: list[str] = Field(
        default_factory=list, description="Tensors of A that the rules leave out of B."
    )
    files: Annotated[list[dict[str, Any]], many(VerifiedFile)]
    tensors: Annotated[list[dict[str, Any]], many(VerifiedTensor)]


class FingerprintAnswer(_Told):
    """What ``reshard fingerprint --json`` tells."""

    command: Literal["fingerprint"]
    uri: RootedPath
    files: int
    nbytes: int
    written: list[str]
    tensors: Annotated[list[dict[str, Any]], many(TensorDigest)]
    seconds: float


class LayoutAnswer(_Told):
    """What ``reshard layout --json`` tells; shapes and bytes are the largest shard's."""

    command: Literal["layout"]
    file: str = Field(description="The stored layout's name, where one was named.")
    source: RootedPath
    tensors: Annotated[list[dict[str, Any]], many(LaidOutTensor)]
    device_bytes: int = Field(description="What each device of the mesh holds.")
    partitioned_bytes: int = Field(description="Size of what is split by count or size instead.")


class PlanAnswer(_Told):
    """What ``reshard plan --json`` tells."""

    command: Literal["plan"]
    source: RootedPath
    target: RootedPath
    tensors: Annotated[list[dict[str, Any]], many(PlannedTensor)]
    totals: Annotated[dict[str, Any], one(PlanTotals)]
    carried: list[str]
    dropped: list[str]
    free_bytes: int | None


class JointPlanAnswer(_Told):
    """What ``reshard plan --json`` tells of several targets, and what is read for all of them."""

    command: Literal["plan"]
    source: RootedPath
    plans: list[PlanAnswer]
    reads: int = Field(description="Moves that share a decoding count once.")
    tasks: int
    source_bytes: int
    decoded_bytes: int
    repeated_bytes: int = Field(description="Decoded again, since memory or time make it cheaper.")
    written_bytes: int
    amplification: float
    peak_bytes: int
