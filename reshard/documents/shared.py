"""What several documents have: meshes, maps, requests to buckets, numbers and names with one meaning."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeVar

from msgspec import Meta, Struct, structs

Shape = tuple[int, ...]
Axes = tuple[str | tuple[str, ...] | None, ...]
Strategy = Literal["copy", "whole", "scatter", "weave", "block"]
"""How pieces are moved.

copy: identical chunks are copied as they are, encoded.
whole: each target chunk is one small source chunk: decoded, encoded and written in one go.
scatter: each source chunk is decoded once in a stream; its pieces go straight to their places in
  raw target chunks.
weave: as scatter, but adjacent source chunks are decoded in lock step, so that whole target rows are written.
block: target chunks are assembled in memory and written whole; for compressed targets, and if pieces would be too
  short. A block that exceeds the memory is cut, and then source chunks may be decoded more than once.
"""

Digest = Annotated[str, Meta(description="CRC-64/NVME, 16 hex digits.")]

QuantizedText = Annotated[
    str,
    Meta(
        description="The weights of a source that are codes with scales, such as 'fp8, blocks of 128×128: 1 weight with scales, 1 as they are'."
    ),
]

MissingNumbers = Annotated[
    Mapping[str, int],
    Meta(
        description="How many chunks of each source tensor are not stored; the fill value is taken."
    ),
]

ONLY_COMMANDS = Meta(extra={"only_commands": True})
"""Of a member that commands print, and that no answer by HTTP has."""

D = TypeVar("D", bound=Struct)


class MeshDocument(Struct, frozen=True):
    """A mesh of devices."""

    axes: tuple[str, ...]
    shape: Shape


def document_of(record: Struct, kind: type[D], **more: Any) -> D:
    """The document of a record that has the same fields, besides ``more``. Raises TypeError if it has others."""
    return kind(**structs.asdict(record), **more)


Change = Literal["exact", "rounded", "cast"]
"""Whether every bit of a tensor is the source's; or arithmetic rounded it; or it was cast."""


class MapAnswer(Struct, frozen=True):
    """What a map makes of a source. Every element of ``sources`` is used, and every element of ``targets`` is written once."""

    sources: Annotated[int, Meta(description="Tensors of the source that are taken.")]
    targets: Annotated[int, Meta(description="Tensors that are made of them.")]
    exact: int
    rounded: int
    cast: int
    tied: Annotated[
        tuple[tuple[str, str], ...],
        Meta(description="Pairs of source tensors that must be equal; the first is not written."),
    ]
    cropped: Annotated[
        tuple[str, ...], Meta(description="Source tensors of which the map takes a part.")
    ]


class BucketRequests(Struct, frozen=True):
    """Requests to buckets, by kind, and bytes of objects."""

    list: int
    head: int
    get: int
    put: int
    part: int
    delete: int
    copy: int
    received_bytes: int
    sent_bytes: int
    total: int


class PlannedRequests(BucketRequests, frozen=True):
    """Requests to buckets, and the time that they take."""

    latency_s: Annotated[float, Meta(description="Of one request.")]
    bytes_per_s: Annotated[float, Meta(description="Of all requests together.")]
    seconds: float


class RequestComparison(Struct, frozen=True):
    """Requests to buckets, before and after a run."""

    planned: BucketRequests
    actual: BucketRequests


class TriedOperation(Struct, frozen=True):
    """One thing that was tried on a bucket."""

    name: str
    holds: bool | None
    found: str
    follows: str


class DoctorAnswer(Struct, frozen=True):
    """What ``reshard doctor --json`` prints."""

    url: str
    checks: tuple[TriedOperation, ...]
    latency_s: float | None
    upload_bytes_per_s: float | None
    download_bytes_per_s: float | None
    is_fine: bool
