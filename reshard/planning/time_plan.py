"""TimePlan: how long a conversion takes on many hosts, and what it waits for."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

from msgspec import Struct
from msgspec.structs import replace

from reshard.arguments import check_positive
from reshard.documents.plans import PlannedTime
from reshard.documents.shared import document_of
from reshard.errors import PlanError
from reshard.planning.multi_plan import MultiPlan
from reshard.planning.processor_time import (
    SECONDS_PER_BUCKET_BYTE,
    SECONDS_PER_FILE_BYTE,
    processor_time,
)
from reshard.planning.request_plan import RequestPlan
from reshard.planning.store_limits import LIMITS, limited_seconds
from reshard.record import Record

Bottleneck = Literal["cores", "network", "store"]

MOST_HOSTS = 1_000_000
MOST_NIC_BYTES_PER_S = 1e18


class TimePlan(Record, frozen=True):
    """How long a conversion takes: processors, network and store work at the same time, and the slowest decides.

    Attributes:
        hosts: that share the tasks.
        cores: processors of each host that run tasks.
        nic_bytes_per_s: what the network interface of each host carries in each direction; None if it is not known.
        cores_s: seconds of the tasks over all processors, but at least those of the longest task.
        network_s: seconds in which the busier direction of each host's network carries its share of the bytes; None without
            ``nic_bytes_per_s``.
        store_s: seconds in which buckets answer the requests, by their latency and by the limits that clouds publish; None
            where there is no bucket, since no limits of file systems are known.
    """

    hosts: int
    cores: int
    nic_bytes_per_s: float | None
    cores_s: float
    network_s: float | None = None
    store_s: float | None = None

    def _document(self) -> PlannedTime:
        return document_of(self, PlannedTime, seconds=self.seconds, bottleneck=self.bottleneck)

    @property
    def seconds(self) -> float:
        """The largest of the three; without the start of the program, and without syncing to disk."""
        return max(self.by_part.values())

    @property
    def bottleneck(self) -> Bottleneck:
        """What takes longest; of equal ones the first of cores, network and store."""
        known = self.by_part
        return max(known, key=lambda part: known[part])

    @property
    def by_part(self) -> dict[Bottleneck, float]:
        """The seconds of each of the three that is known."""
        found: dict[Bottleneck, float | None] = {
            "cores": self.cores_s, "network": self.network_s, "store": self.store_s,
        }  # fmt: skip
        return {part: seconds for part, seconds in found.items() if seconds is not None}


class Hosts(Struct, frozen=True):
    """What a conversion runs on. ``checked`` makes one from what a user gave.

    Attributes:
        count: hosts that share the tasks.
        cores: processors of each; a host has at most one busy processor for each of the plan's workers.
        nic_bytes_per_s: of each host, in each direction; None if it is not known.
    """

    count: int = 1
    cores: int = 1
    nic_bytes_per_s: float | None = None

    @classmethod
    def checked(cls, hosts: Any, cores: Any, nic_bytes_per_s: Any) -> Hosts:
        """PlanError for numbers that are not possible."""
        check_positive("hosts", hosts, "hosts that share the work, such as 16")
        check_positive("cores", cores, "processors of each host, such as 8")
        if max(hosts, cores) > MOST_HOSTS:
            raise PlanError(
                f"there are more than {MOST_HOSTS:,} hosts, or cores in a host; expected at most so many of each"
            )
        if nic_bytes_per_s is not None and not _is_rate(nic_bytes_per_s):
            raise PlanError(
                f"nic_bytes_per_s is {nic_bytes_per_s!r}; expected bytes per second above 0, such as 12.5e9, or None if "
                "it is not known"
            )
        return cls(hosts, cores, nic_bytes_per_s)


def _is_rate(value: Any) -> bool:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and 0 < value <= MOST_NIC_BYTES_PER_S


def plan_time(
    plan: MultiPlan,
    source: str,
    targets: Sequence[str],
    hosts: Hosts,
    requests: RequestPlan | None = None,
    latency_s: float = RequestPlan.LATENCY_S,
) -> TimePlan:
    """Estimates the time of a conversion whose tasks are spread evenly over hosts.

    On several hosts all bytes cross the network, since files are then on a shared file system; on one host those of buckets
    do. Bytes of files count uncompressed.

    Args:
        source, targets: paths and URLs; "" for a target without a name.
        requests: to buckets; None where nothing is in one, or where they are not known.
        latency_s: of one request.
    """
    traffic = _traffic(plan, source, targets, requests)
    work = processor_time(plan, *_seconds_per_byte(traffic, source, targets))
    cores = min(hosts.cores, plan.workers)
    return TimePlan(
        hosts.count,
        cores,
        hosts.nic_bytes_per_s,
        max(work.total_s / (hosts.count * cores), work.longest_task_s),
        _network_seconds(traffic, hosts),
        _store_seconds(requests, source, targets, hosts.count * plan.workers, latency_s),
    )


class _Traffic(Struct, frozen=True):
    """Bytes that a run reads and writes.

    Attributes:
        received_bytes, sent_bytes: from and to buckets.
        read_bytes, written_bytes: of files.
        bucket_read_share, bucket_written_share: the part of what tasks read from, and write to, buckets that passes through
            this program; the rest is compressed, or is copied by the store.
    """

    received_bytes: float
    sent_bytes: float
    read_bytes: int
    written_bytes: int
    bucket_read_share: float
    bucket_written_share: float


def _traffic(
    plan: MultiPlan, source: str, targets: Sequence[str], requests: RequestPlan | None
) -> _Traffic:
    decoded = plan.decoded_bytes
    in_buckets = sum(
        each.written_bytes for each, to in zip(plan.plans, targets, strict=True) if _scheme(to)
    )
    from_bucket = decoded if _scheme(source) else 0
    received, sent = from_bucket, in_buckets
    if requests is not None:
        every = requests.steps + requests.metadata + requests.data
        received, sent = every.received_bytes, every.sent_bytes
    return _Traffic(
        received,
        sent,
        decoded - from_bucket,
        plan.written_bytes - in_buckets,
        min(1.0, received / from_bucket) if from_bucket else 0.0,
        min(1.0, sent / in_buckets) if in_buckets else 0.0,
    )


def _seconds_per_byte(
    traffic: _Traffic, source: str, targets: Sequence[str]
) -> tuple[float, list[float]]:
    """What a byte of the source costs a processor, and a byte of each target, besides codecs."""
    received_s = traffic.bucket_read_share * SECONDS_PER_BUCKET_BYTE
    sent_s = traffic.bucket_written_share * SECONDS_PER_BUCKET_BYTE
    return (
        received_s if _scheme(source) else SECONDS_PER_FILE_BYTE,
        [sent_s if _scheme(target) else SECONDS_PER_FILE_BYTE for target in targets],
    )


def _network_seconds(traffic: _Traffic, hosts: Hosts) -> float | None:
    if hosts.nic_bytes_per_s is None:
        return None
    received, sent = traffic.received_bytes, traffic.sent_bytes
    if hosts.count > 1:
        received += traffic.read_bytes
        sent += traffic.written_bytes
    return max(received, sent) / hosts.count / hosts.nic_bytes_per_s


def _store_seconds(
    requests: RequestPlan | None,
    source: str,
    targets: Sequence[str],
    at_once: int,
    latency_s: float,
) -> float | None:
    """The requests' own time, with ``at_once`` tasks that wait for answers, or what the clouds' limits allow."""
    if requests is None:
        return None
    waiting_s = replace(requests, workers=at_once).seconds(latency_s, math.inf)
    every = requests.steps + requests.metadata + requests.data
    sources = filter(None, [_scheme(source)])
    return max(waiting_s, limited_seconds(every, sources, filter(None, map(_scheme, targets))))


def _scheme(place: str) -> str | None:
    """The scheme of a URL of a bucket; None for files."""
    scheme, separator, _ = place.partition("://")
    return scheme if separator and scheme in LIMITS else None
