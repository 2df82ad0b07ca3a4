"""The library's parts of answers (docs/reference/json-output.md), typed for the OpenAPI document.

The server passes these parts on without validation, since a list may have 30,000 tensors. The classes only describe them.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, WithJsonSchema

MODEL_MARK = "x-model"
"""In a schema: the name of a class below, whose schema takes the mark's place."""

Shape = list[int]
Axes = list[str | list[str] | None]
AxisType = Literal["Auto", "Explicit", "Manual"]
Strategy = Literal["copy", "whole", "scatter", "weave", "block"]
Digest = Annotated[str, Field(description="CRC-64/NVME, 16 hex digits.")]

MissingNumbers = Annotated[
    dict[str, int],
    Field(
        description="How many chunks of each source tensor are not stored; the fill value is taken."
    ),
]

STAGES = (
    "checking", "copying", "reading back", "syncing", "restoring", "reading", "reading files", "comparing",
)  # fmt: skip
"""The stages of a run's progress."""


class LibraryDocument(BaseModel):
    """A part of an answer; it may have further members."""

    model_config = ConfigDict(frozen=True, extra="allow")


class Mesh(LibraryDocument):
    """A mesh of devices."""

    axes: list[str]
    shape: Shape


class RecordedMesh(Mesh):
    """A mesh with the recorded types of its axes and its devices."""

    axis_types: list[AxisType] | None
    device_ids: list[int] | None


class InspectedTensor(LibraryDocument):
    """A tensor of a checkpoint."""

    name: str
    item: str | None
    shape: Shape
    dtype: str
    nbytes: int
    chunk_shape: Shape | None
    chunks: int
    compressor: str
    level: int | None
    checksum: bool
    mesh: Mesh | None
    axes: Axes | None
    shards: int = Field(description="Number of different parts that the tensor was saved in.")
    partition: dict[str, Any] | None = Field(
        description="How it was split beyond mesh axes, if it was: strategy, axis, shards and partitioner."
    )
    digest: Digest | None
    is_key: bool = Field(description="Whether it is a PRNG key.")


class ItemReport(LibraryDocument):
    """An item of a checkpoint."""

    name: str
    directory: str
    is_tree: bool
    handler: str | None


class LeafReport(LibraryDocument):
    """A leaf of a checkpoint's tree."""

    name: str
    item: str | None
    is_tensor: bool


class PlannedTensor(LibraryDocument):
    """What a plan does with a tensor; shards are null if there is no layout."""

    source: str
    target: str
    shape: Shape
    source_dtype: str
    target_dtype: str
    source_shards: Shape | None
    source_shard_shape: Shape | None
    target_shards: Shape | None
    target_shard_shape: Shape | None
    source_chunk_shape: Shape | None
    target_chunk_shape: Shape | None
    source_chunks: int
    target_chunks: int
    source_mesh: Mesh | None
    target_mesh: Mesh | None
    source_axes: Axes | None
    target_axes: Axes | None
    partition: dict[str, Any] | None
    strategy: Strategy
    tasks: int
    source_bytes: int
    decoded_bytes: int
    written_bytes: int
    amplification: float
    task_bytes: int
    shares: list[tuple[int, int, float]] | None = Field(
        None, description="[target shard, source shard, share], if the request asks for shares."
    )


class PlanTotals(LibraryDocument):
    """Totals of a plan's tensors."""

    tensors: int
    tasks: int
    source_bytes: int
    decoded_bytes: int
    written_bytes: int
    amplification: float
    peak_bytes: int
    max_memory: int
    metadata_bytes: int
    workers: int


class BucketRequests(LibraryDocument):
    """Requests to buckets, by kind, and bytes of objects."""

    list: int
    head: int
    get: int
    put: int
    part: int
    delete: int
    copies: int = Field(alias="copy")
    received_bytes: int
    sent_bytes: int
    total: int


class PlannedRequests(BucketRequests):
    """Requests to buckets, and the time that they take."""

    latency_s: float = Field(description="Of one request.")
    bytes_per_s: float = Field(description="Of all requests together.")
    seconds: float


class RequestComparison(LibraryDocument):
    """Requests to buckets, before and after a run."""

    planned: BucketRequests
    actual: BucketRequests


class CastReport(LibraryDocument):
    """The losses of a cast."""

    overflows: int
    nans: int
    largest_relative_error: float | Literal["inf", "nan"]
    saturated: int


class TensorReport(LibraryDocument):
    """The result for one tensor; if the target was already done, only what the target records."""

    source: str | None
    target: str
    shape: Shape
    source_dtype: str | None
    target_dtype: str
    strategy: Strategy | None
    nbytes: int
    source_digest: Digest | None
    target_digest: Digest | None
    proof: Literal["proved", "written", "encoded"] | None
    cast: CastReport | None


class TargetReport(LibraryDocument):
    """The result for one target."""

    command: Literal["convert"]
    source: str
    target: str
    tensors: list[TensorReport] | None = Field(
        None, description="Left out of events unless fields includes it; see result_url."
    )
    tensor_count: int | None = Field(
        None, description="In place of tensors, if these are left out."
    )
    nbytes: int
    read_bytes: int
    moved_bytes: int
    written_bytes: int
    seconds: float
    warnings: list[str]
    missing_chunks: MissingNumbers = Field(default_factory=dict)
    resumed_bytes: int
    already_done: bool
    requests: RequestComparison | None = Field(
        None,
        description="Requests to buckets; null if nothing is in one, and for each of several targets.",
    )


class VerifiedTensor(LibraryDocument):
    """The comparison of one tensor."""

    name: str
    status: Literal[
        "equal",
        "different",
        "damaged",
        "only in A",
        "only in B",
        "recorded",
        "checksum",
        "not recorded",
    ]
    digest_a: Digest | None
    digest_b: Digest | None
    detail: str
    source: str | None
    comparison: Literal["exact", "cast"]
    source_dtype: str | None
    target_dtype: str | None
    saturate: bool


class VerifiedLeaf(LibraryDocument):
    """The comparison of a leaf that is not a tensor on both sides: a string, None or an empty container."""

    name: str
    status: Literal[
        "equal", "different", "only in A", "only in B", "no place in A", "no place in B"
    ]
    a: str | None
    b: str | None
    source: str | None


class VerifiedFile(LibraryDocument):
    """The comparison of a file with its record."""

    name: str
    side: Literal["A", "B"]
    status: Literal["recorded", "different", "missing", "unexpected", "unreadable", "added"]
    stored: str | None
    recorded: str | None
    detail: str


class VerifiedRules(LibraryDocument):
    """The rules by which B was made from A."""

    from_: Literal["recorded", "given"] = Field(alias="from")
    select: list[str]
    drop: list[str]
    rename: list[tuple[str, str]]
    cast: list[tuple[str, str]]


class TensorDigest(LibraryDocument):
    """The recorded digest of a tensor."""

    name: str
    digest: Digest


class LaidOutTensor(LibraryDocument):
    """How a layout splits a tensor; shape and bytes are the largest shard's."""

    source: str
    target: str
    shape: Shape
    dtype: str
    source_mesh: Mesh | None
    source_axes: Axes | None
    source_shards: Shape | None
    target_mesh: Mesh | None
    target_axes: Axes | None
    target_shards: Shape
    target_shard_shape: Shape
    target_shard_bytes: int
    partition: dict[str, Any] | None


MODELS: dict[str, type[BaseModel]] = {
    model.__name__: model
    for model in (
        RecordedMesh, InspectedTensor, ItemReport, LeafReport, PlannedTensor, PlanTotals, TargetReport, VerifiedTensor, VerifiedFile, VerifiedLeaf,
        VerifiedRules, TensorDigest, LaidOutTensor,
    )
}  # fmt: skip
"""The classes that schemas name by ``MODEL_MARK``."""


def one(model: type[BaseModel] | str) -> WithJsonSchema:
    """The schema of one such object."""
    return WithJsonSchema({MODEL_MARK: model if isinstance(model, str) else model.__name__})


def many(model: type[BaseModel]) -> WithJsonSchema:
    """The schema of a list of such objects."""
    return WithJsonSchema({"type": "array", "items": {MODEL_MARK: model.__name__}})
