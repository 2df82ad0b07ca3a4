"""RequestPlan: the requests that a conversion makes to buckets, and the time that they take."""

from __future__ import annotations

from typing import Any, ClassVar

from msgspec import structs

from reshard.answers.record import Record
from reshard.storage.requests import NONE, PlannedRequests, Requests

METADATA_AT_ONCE = 32
"""Number of metadata files that are read, or put, at the same time."""

RENEWAL_S = 8.0
RENEWAL = Requests(head=1, put=1)
"""Seconds between two renewals of a target's lease, and the requests of one."""

SEGMENT_S = 5.0
"""Seconds between two puts of records of finished work."""


class RequestPlan(Record, frozen=True):
    """The requests of a conversion, as far as they are known beforehand.

    Attributes:
        steps: requests made one after the other: recognising, listing, locking, publishing.
        metadata: files of metadata, many at the same time.
        data: chunks of tensors, of ``workers`` tasks at the same time.
        workers: tasks at the same time.
        targets: targets in buckets, which keep a lease and records while the run lasts.
        segment_deletes: requests that remove one segment of records of a target.

    ``LATENCY_S`` and ``BYTES_PER_S`` are the defaults: a machine outside the bucket's region.
    """

    LATENCY_S: ClassVar[float] = 0.03
    BYTES_PER_S: ClassVar[float] = 150e6

    steps: Requests = NONE
    metadata: Requests = NONE
    data: Requests = NONE
    workers: int = 1
    targets: int = 0
    segment_deletes: int = 0

    def requests(self, latency_s: float = LATENCY_S, bytes_per_s: float = BYTES_PER_S) -> Requests:
        """All requests; those that recur every few seconds for a link of this latency and bandwidth."""
        moving_s = self._moving_s(latency_s, bytes_per_s)
        segment = Requests(put=1, delete=self.segment_deletes)
        kept = RENEWAL * int(moving_s / RENEWAL_S) + segment * int(moving_s / SEGMENT_S)
        return self.steps + self.metadata + self.data + kept * self.targets

    def seconds(self, latency_s: float = LATENCY_S, bytes_per_s: float = BYTES_PER_S) -> float:
        """The time of the requests; decoding and encoding go on meanwhile, and are not counted."""
        rounds = self.steps.total + self.metadata.total / METADATA_AT_ONCE
        return rounds * latency_s + self._moving_s(latency_s, bytes_per_s)

    def on_link(self, **link: float) -> PlannedRequests:
        """The requests, and their time on a link; ``link`` has the arguments of ``seconds``."""
        link = {"latency_s": self.LATENCY_S, "bytes_per_s": self.BYTES_PER_S, **link}
        counts: dict[str, Any] = {**structs.asdict(self.requests(**link)), **link}
        return PlannedRequests(**counts, seconds=self.seconds(**link))

    def _moving_s(self, latency_s: float, bytes_per_s: float) -> float:
        every = self.steps + self.metadata + self.data
        waiting_s = self.data.total * latency_s / max(1, self.workers)
        return max(waiting_s, every.received_bytes / bytes_per_s, every.sent_bytes / bytes_per_s)
