"""What is shown of buckets: requests to them, and whether one can do what this project needs."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct


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
