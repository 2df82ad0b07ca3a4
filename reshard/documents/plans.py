"""What is shown of a plan: each tensor, the totals, and the time that it takes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct, UnsetType, field

from reshard.documents.shared import (
    ONLY_COMMANDS,
    Axes,
    Change,
    MapAnswer,
    MeshDocument,
    MissingNumbers,
    PlannedRequests,
    QuantizedText,
    Shape,
    Strategy,
)


class PlannedTensor(Struct, frozen=True):
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
    source_mesh: MeshDocument | None
    target_mesh: MeshDocument | None
    source_axes: Axes | None
    target_axes: Axes | None
    partition: Mapping[str, Any] | None
    strategy: Strategy
    tasks: int
    source_bytes: int
    decoded_bytes: int
    written_bytes: int
    amplification: float
    task_bytes: int
    # A server of an older version leaves out the largest chunks and the processes.
    source_largest_chunk: Annotated[
        Shape | None, Meta(description="Shape of the largest chunk, without its padding.")
    ] = None
    target_largest_chunk: Annotated[
        Shape | None, Meta(description="Shape of the largest chunk, without its padding.")
    ] = None
    shares: Annotated[
        tuple[tuple[int, int, float], ...] | UnsetType,
        Meta(description="[target shard, source shard, share], if the request asks for shares."),
    ] = UNSET
    sources: Annotated[
        tuple[str, ...] | UnsetType, Meta(description="Of a map: all source tensors.")
    ] = UNSET
    change: Annotated[
        Change | UnsetType, Meta(description="Of a map: what becomes of the elements.")
    ] = UNSET


class PlanTotals(Struct, frozen=True):
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
    processes: Annotated[
        int, Meta(description="Processes that share the workers; 0 for threads of one process.")
    ] = 0


class PlannedTime(Struct, frozen=True):
    """The time of a conversion on several hosts, and what it waits for."""

    hosts: int
    cores: int
    nic_bytes_per_s: float | None
    cores_s: float
    network_s: float | None
    store_s: float | None
    seconds: float
    bottleneck: str


IdentityHow = Literal["carry", "compute", "check"]


class PlannedIdentity(Struct, frozen=True):
    """What the identity of a target's weights costs."""

    how: IdentityHow
    read_bytes: Annotated[
        int, Meta(description="Of the target's tensors, which are read once more to be hashed.")
    ]
    decoded_bytes: Annotated[
        int, Meta(description="Those of them that are stored compressed, so that they are decoded.")
    ]
    peak_bytes: int
    core_s: Annotated[float, Meta(description="Seconds of one processor, about.")]
    source: Annotated[
        str | UnsetType, Meta(description="Root that the source records, 64 hex digits.")
    ] = UNSET


class PlanAnswer(Struct, frozen=True, kw_only=True):
    """What ``reshard plan --json`` prints."""

    source: str
    target: str | None
    tensors: tuple[PlannedTensor, ...]
    totals: PlanTotals
    carried: tuple[str, ...]
    dropped: tuple[str, ...]
    warnings: tuple[str, ...] = ()
    missing_chunks: MissingNumbers = field(default_factory=dict)
    free_bytes: int | None
    requests: Annotated[
        PlannedRequests | None,
        Meta(
            description="Requests to buckets; null if nothing is in one, and for each of several targets."
        ),
    ] = None
    time: Annotated[PlannedTime | UnsetType, ONLY_COMMANDS] = UNSET
    map: Annotated[MapAnswer | UnsetType, Meta(description="What a map makes of the source.")] = (
        UNSET
    )
    identity: Annotated[
        PlannedIdentity | UnsetType,
        Meta(description="What the identity of the weights costs, where one is made."),
    ] = UNSET
    quantized: QuantizedText | UnsetType = UNSET


class MultiPlanAnswer(Struct, frozen=True, kw_only=True):
    """What ``reshard plan --json`` prints for several targets, with the totals of all."""

    source: str
    plans: tuple[PlanAnswer, ...]
    reads: Annotated[int, Meta(description="Reads; targets that share a decoded chunk count once.")]
    tasks: int
    source_bytes: int
    decoded_bytes: int
    repeated_bytes: Annotated[
        int,
        Meta(
            description="Bytes that are decoded more than once, because that saves memory or time."
        ),
    ]
    written_bytes: int
    amplification: float
    peak_bytes: int
    requests: Annotated[
        PlannedRequests | None,
        Meta(description="Requests to buckets for all targets; null if nothing is in one."),
    ] = None
    time: Annotated[PlannedTime | UnsetType, ONLY_COMMANDS] = UNSET
