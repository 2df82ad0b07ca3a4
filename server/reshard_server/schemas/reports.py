"""The parts of answers that the library makes (docs/reference/json-output.md), typed for the OpenAPI document.

Answers are passed on as they come, a list of 30,000 tensors among them; these classes describe them and check
nothing.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, WithJsonSchema

MODEL_MARK = "x-model"
"""In a schema: the name of the class below whose schema belongs there."""

Shape = list[int]
Axes = list[str | list[str] | None]
AxisType = Literal["Auto", "Explicit", "Manual"]
Strategy = Literal["copy", "whole", "scatter", "weave", "block"]
Digest = Annotated[str, Field(description="CRC-64/NVME, 16 hex digits.")]

STAGES = (
    "checking", "copying", "reading back", "syncing", "restoring", "reading", "reading files", "comparing",
)  # fmt: skip
"""What a run is at, in its progress."""


class Told(BaseModel):
    """Further members may follow."""

    model_config = ConfigDict(frozen=True, extra="allow")


class Mesh(Told):
    """A mesh of devices."""

    axes: list[str]
    shape: Shape


class RecordedMesh(Mesh):
    """A mesh with what was recorded of its axes' types and devices."""

    axis_types: list[AxisType] | None
    device_ids: list[int] | None


class InspectedTensor(Told):
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
    digest: Digest | None
    is_key: bool = Field(description="Whether it is a PRNG key.")


class Item(Told):
    """An item of a checkpoint."""

    name: str
    directory: str
    is_tree: bool
    handler: str | None


class Leaf(Told):
    """A leaf of a checkpoint's tree."""

    name: str
    item: str | None
    is_tensor: bool


class PlannedTensor(Told):
    """What a plan does with a tensor; shards are null where there is no layout."""

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
        None, description="[target shard, source shard, share], where they were asked for."
    )


class PlanTotals(Told):
    """Of all tensors of a plan."""

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


class CastReport(Told):
    """What a cast lost."""

    overflows: int
    nans: int
    largest_relative_error: float | Literal["inf", "nan"]
    saturated: int


class TensorReport(Told):
    """What became of one tensor; where the target was finished before, only what it records of itself."""

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


class TargetReport(Told):
    """What became of one target."""

    command: Literal["convert"]
    source: str
    target: str
    tensors: list[TensorReport] | None = Field(
        None, description="Left out of events unless fields asks for it; see result_url."
    )
    tensor_count: int | None = Field(
        None, description="In place of tensors, where these are left out."
    )
    nbytes: int
    read_bytes: int
    moved_bytes: int
    written_bytes: int
    seconds: float
    warnings: list[str]
    resumed_bytes: int
    already_done: bool


class VerifiedTensor(Told):
    """What comparing one tensor gave."""

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


class VerifiedFile(Told):
    """What comparing a file with its record gave."""

    name: str
    side: Literal["A", "B"]
    status: Literal["recorded", "different", "missing", "unexpected", "unreadable", "added"]
    stored: str | None
    recorded: str | None
    detail: str


class VerifiedRules(Told):
    """By which B was made of A."""

    from_: Literal["recorded", "given"] = Field(alias="from")
    select: list[str]
    drop: list[str]
    rename: list[tuple[str, str]]
    cast: list[tuple[str, str]]


class TensorDigest(Told):
    """The digest that was recorded of a tensor."""

    name: str
    digest: Digest


class LaidOutTensor(Told):
    """How a layout cuts a tensor; the shape and the bytes are the largest shard's."""

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
        RecordedMesh, InspectedTensor, Item, Leaf, PlannedTensor, PlanTotals, TargetReport, VerifiedTensor, VerifiedFile,
        VerifiedRules, TensorDigest, LaidOutTensor,
    )
}  # fmt: skip
"""Those that schemas name by ``MODEL_MARK``."""


def one(model: type[BaseModel] | str) -> WithJsonSchema:
    """The schema of an object that is passed on."""
    return WithJsonSchema({MODEL_MARK: model if isinstance(model, str) else model.__name__})


def many(model: type[BaseModel]) -> WithJsonSchema:
    """The schema of a list of such objects."""
    return WithJsonSchema({"type": "array", "items": {MODEL_MARK: model.__name__}})
