"""What is shown of a conversion: the report of each tensor, of each target, and of several."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import UNSET, Meta, Struct, UnsetType, field

from reshard.documents.plans import PlannedTime
from reshard.documents.shared import (
    ONLY_COMMANDS,
    Change,
    Digest,
    MapAnswer,
    MissingNumbers,
    RequestComparison,
    Shape,
    Strategy,
)


class CastReport(Struct, frozen=True):
    """The losses of a cast."""

    overflows: int
    nans: int
    largest_relative_error: float | Literal["inf", "nan"]
    saturated: int


class TensorReport(Struct, frozen=True):
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
    sources: Annotated[
        tuple[str, ...] | UnsetType, Meta(description="Of a map: all source tensors.")
    ] = UNSET
    change: Annotated[
        Change | UnsetType, Meta(description="Of a map: what became of the elements.")
    ] = UNSET


class TimeComparison(Struct, frozen=True):
    """The time of a run on several hosts, before and after it."""

    planned: PlannedTime
    actual_s: float


class IdentityOutcome(Struct, frozen=True):
    """The identity of a target's weights."""

    root: Annotated[str, Meta(description="64 hex digits.")]
    how: Annotated[
        Literal["carried", "computed", "checked", "recorded"],
        Meta(
            description="From the source, by its word; of what was written; computed and equal to the source's; or recorded in a "
            "target that was finished before, of which nothing was read."
        ),
    ]
    source: Annotated[
        str | UnsetType,
        Meta(
            description="Root of the source, where the target's is another and a receipt says which rules made it."
        ),
    ] = UNSET
    signers: Annotated[
        tuple[str, ...] | UnsetType,
        Meta(
            description="Ids of the keys of the signature that lies beside the target's identity; not verified."
        ),
    ] = UNSET


class TargetReport(Struct, frozen=True, kw_only=True):
    """The result for one target."""

    source: str
    target: str
    tensors: Annotated[
        tuple[TensorReport, ...] | UnsetType,
        Meta(description="Left out of events unless fields includes it; see result_url."),
    ] = UNSET
    tensor_count: Annotated[
        int | UnsetType, Meta(description="In place of tensors, if these are left out.")
    ] = UNSET
    nbytes: int
    read_bytes: int
    moved_bytes: int
    written_bytes: int
    seconds: float
    warnings: tuple[str, ...]
    missing_chunks: MissingNumbers = field(default_factory=dict)
    resumed_bytes: int
    already_done: bool
    requests: Annotated[
        RequestComparison | None,
        Meta(
            description="Requests to buckets; null if nothing is in one, and for each of several targets."
        ),
    ] = None
    time: Annotated[TimeComparison | UnsetType, ONLY_COMMANDS] = UNSET
    map: Annotated[MapAnswer | UnsetType, Meta(description="What a map made of the source.")] = (
        UNSET
    )
    identity: Annotated[
        IdentityOutcome | UnsetType, Meta(description="Of the weights, where one was made.")
    ] = UNSET


class MultiTargetReport(Struct, frozen=True):
    """The result for several targets, and what was read for all of them."""

    source: str
    reports: tuple[TargetReport, ...]
    read_bytes: int
    requests: RequestComparison | None
    time: Annotated[TimeComparison | UnsetType, ONLY_COMMANDS] = UNSET
