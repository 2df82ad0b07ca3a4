"""Estimates of a conversion: RequestPlan, its requests to buckets at most; TimePlan, its time on hosts, and the bottleneck.

``Price.seconds`` ranks strategies and leaves out what all of them do: reading and writing files or requests, and casts.
The constants here add it. docs/how-to/size-a-conversion.md gives the error of the sum.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar, Literal

from msgspec import Struct, structs
from msgspec.structs import replace

from reshard.answers.record import Json, Record
from reshard.arguments import check_positive
from reshard.errors import PlanError
from reshard.planning.plans import Fill, MultiPlan, Read
from reshard.storage.base import NONE, PlannedRequests, RequestRates, Requests, RequestTraits

SECONDS_PER_FILE_BYTE = 1 / 4e9
"""System calls that read or write a byte of a file (measured: 0.2 to 0.3 s per GB in each direction)."""

SECONDS_PER_BUCKET_BYTE = 1 / 0.8e9
"""Requests that read or write a byte of an object. A copy by the same client takes 2 to 3 s per GB, in and out (measured,
see docs/how-to/buckets.md)."""

SECONDS_PER_CAST_BYTE = 1 / 0.4e9
"""A cast of a byte of the source, with the statistics of what it loses (measured: 2.5 to 3.4 s per GB)."""

SECONDS_PER_UNIT = 1e-3
"""A task of few bytes, with its records (measured: 1 ms a small tensor, docs/explanation/performance.md)."""

METADATA_AT_ONCE = 32
"""Number of metadata files that are read, or put, at the same time."""

RENEWAL_S = 8.0
RENEWAL = Requests(head=1, put=1)
"""Seconds between two renewals of a target's lease, and the requests of one."""

SEGMENT_S = 5.0
"""Seconds between two puts of records of finished work."""

Bottleneck = Literal["cores", "network", "store"]

MOST_HOSTS = 1_000_000
MOST_NIC_BYTES_PER_S = 1e18
"""Against numbers for which the arithmetic overflows, or a plan that divides by them tells nothing."""


class RequestPlan(Record, frozen=True):
    """The requests of a conversion at most, by ``conversion/most_requests.py``.

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

    @property
    def known(self) -> Requests:
        """All requests but those that recur every few seconds of the run."""
        return self.steps + self.metadata + self.data

    def requests(self, latency_s: float = LATENCY_S, bytes_per_s: float = BYTES_PER_S) -> Requests:
        """All requests at most, if the run takes the time of a link of this latency and bandwidth."""
        moving_s = self._moving_s(latency_s, bytes_per_s)
        segment = Requests(put=1, delete=self.segment_deletes)
        kept = RENEWAL * int(moving_s / RENEWAL_S) + segment * int(moving_s / SEGMENT_S)
        return self.known + kept * self.targets

    def seconds(self, latency_s: float = LATENCY_S, bytes_per_s: float = BYTES_PER_S) -> float:
        """The time of so many requests; decoding and encoding go on meanwhile, and are not counted."""
        rounds = self.steps.total + self.metadata.total / METADATA_AT_ONCE
        return rounds * latency_s + self._moving_s(latency_s, bytes_per_s)

    def on_link(self, **link: float) -> PlannedRequests:
        """The requests, and their time on a link; ``link`` has the arguments of ``seconds``."""
        link = {"latency_s": self.LATENCY_S, "bytes_per_s": self.BYTES_PER_S, **link}
        counts: dict[str, Any] = {**structs.asdict(self.requests(**link)), **link}
        return PlannedRequests(**counts, seconds=self.seconds(**link))

    def _moving_s(self, latency_s: float, bytes_per_s: float) -> float:
        waiting_s = self.data.total * latency_s / max(1, self.workers)
        nbytes = max(self.known.received_bytes, self.known.sent_bytes)
        return max(waiting_s, nbytes / bytes_per_s)


class TimePlan(Record, frozen=True):
    """The time of a conversion: processors, network and store work at the same time, and the slowest decides.

    Attributes:
        hosts: number of hosts that share the tasks.
        cores: processors of each host that run tasks.
        nic_bytes_per_s: bandwidth of each host's network interface, in each direction; None if unknown.
        cores_s: seconds of the tasks over all processors, but at least those of the longest task.
        network_s: seconds in which the busier direction of each host's network carries its share of the bytes; None without
            ``nic_bytes_per_s``.
        store_s: seconds in which buckets answer the requests, by their latency and by the limits that clouds publish; None
            without a bucket, since no limits of file systems are known.
    """

    JSON: ClassVar[Json] = Json(
        (
            "hosts",
            "cores",
            "nic_bytes_per_s",
            "cores_s",
            "network_s",
            "store_s",
            "seconds",
            "bottleneck",
        )
    )

    hosts: int
    cores: int
    nic_bytes_per_s: float | None
    cores_s: float
    network_s: float | None = None
    store_s: float | None = None

    def after(self, core_s: float) -> TimePlan:
        """The same plan, plus so many processor seconds that one host spends after the tasks, on all of its cores."""
        return replace(self, cores_s=self.cores_s + core_s / self.cores) if core_s else self

    @property
    def seconds(self) -> float:
        """The largest of the three; it leaves out the start of the program and syncing to disk."""
        return max(self.by_part.values())

    @property
    def bottleneck(self) -> Bottleneck:
        """The part that takes longest; of equal ones the first of cores, network and store."""
        known = self.by_part
        return max(known, key=lambda part: known[part])

    @property
    def by_part(self) -> dict[Bottleneck, float]:
        """The known seconds of the three parts."""
        found: dict[Bottleneck, float | None] = {
            "cores": self.cores_s, "network": self.network_s, "store": self.store_s,
        }  # fmt: skip
        return {part: seconds for part, seconds in found.items() if seconds is not None}


class Hosts(Struct, frozen=True):
    """The hosts of a conversion. ``checked`` makes it from a user's numbers.

    Attributes:
        count: number of hosts that share the tasks.
        cores: processors of each; a host has at most one busy processor for each of the plan's workers.
        nic_bytes_per_s: bandwidth of each host, in each direction; None if unknown.
    """

    count: int = 1
    cores: int = 1
    nic_bytes_per_s: float | None = None

    @classmethod
    def checked(cls, hosts: Any, cores: Any, nic_bytes_per_s: Any) -> Hosts:
        """Hosts of these numbers; PlanError for impossible ones."""
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
    source: RequestTraits,
    targets: Sequence[RequestTraits],
    hosts: Hosts,
    requests: RequestPlan | None = None,
    latency_s: float = RequestPlan.LATENCY_S,
) -> TimePlan:
    """Estimates the time of a conversion with tasks spread evenly over hosts.

    On several hosts all bytes cross the network, since files are then on a shared file system. On one host only bytes of
    buckets do. Bytes of files count uncompressed.

    Args:
        source, targets: the traits of requests to their stores; those of a disk have no rates.
        requests: to buckets; None without a bucket, or if they are unknown.
        latency_s: of one request.
    """
    from_bucket = plan.decoded_bytes if source.rates else 0
    to_buckets = sum(
        each.written_bytes for each, to in zip(plan.plans, targets, strict=True) if to.rates
    )
    received, sent = float(from_bucket), float(to_buckets)
    if requests is not None:
        received, sent = requests.known.received_bytes, requests.known.sent_bytes
    total_s, longest_task_s = processor_time(
        plan,
        _seconds_per_byte(source, received, from_bucket),
        [_seconds_per_byte(target, sent, to_buckets) for target in targets],
    )
    if hosts.count > 1:
        received += plan.decoded_bytes - from_bucket
        sent += plan.written_bytes - to_buckets
    store_s = None
    if (
        requests is not None
    ):  # it waits for answers in all tasks at once, or for what the clouds' limits allow
        waiting = replace(requests, workers=hosts.count * plan.workers)
        limited_s = limited_seconds(requests.known, source.rates, [to.rates for to in targets])
        store_s = max(waiting.seconds(latency_s, math.inf), limited_s)
    nic, cores = hosts.nic_bytes_per_s, min(hosts.cores, plan.workers)
    return TimePlan(
        hosts.count,
        cores,
        nic,
        max(total_s / (hosts.count * cores), longest_task_s),
        None if nic is None else max(received, sent) / hosts.count / nic,
        store_s,
    )


def _seconds_per_byte(place: RequestTraits, carried: float, moved: int) -> float:
    """Processor seconds of a byte, besides codecs. Of the bytes moved from or to buckets, only those that requests carry pass
    through this program; compression removes the rest, or the store copies it."""
    if place.rates is None:
        return SECONDS_PER_FILE_BYTE
    return min(1.0, carried / moved) * SECONDS_PER_BUCKET_BYTE if moved else 0.0


def processor_time(
    plan: MultiPlan, read_s_per_byte: float, write_s_per_byte: Sequence[float]
) -> tuple[float, float]:
    """Seconds of one processor for all tasks of a plan together, and for the longest of them.

    Args:
        read_s_per_byte: seconds to get a byte of the source, without decoding.
        write_s_per_byte: for each target, seconds to put a byte, without encoding.
    """
    total_s = longest_s = 0.0
    for read in plan.reads:
        fills = [plan.fill(at) for at in read.fills]
        seconds = read_seconds(read, fills, read_s_per_byte, write_s_per_byte)
        total_s += seconds
        elements = math.prod(read.units.shape)
        share = math.prod(read.units.largest) / elements if elements else 1.0
        longest_s = max(longest_s, seconds * share)
    return total_s, longest_s


def read_seconds(
    read: Read, fills: Sequence[Fill], read_s_per_byte: float, write_s_per_byte: Sequence[float]
) -> float:
    """Seconds of one processor for all tasks of a read with these fills; arguments as for ``processor_time``."""
    seconds = fills[0].price.decoded_bytes * read_s_per_byte
    for at, fill in zip(read.fills, fills, strict=True):
        written_s = fill.price.written_bytes * write_s_per_byte[at.target]
        is_cast = any(piece.is_computed for piece in fill.pieces)
        cast_s = fill.moved_bytes * SECONDS_PER_CAST_BYTE if is_cast else 0.0
        seconds += fill.price.seconds + written_s + cast_s
    return seconds


def unit_cost(read: Read, fills: Sequence[Fill], to_buckets: Sequence[bool], workers: int) -> int:
    """The cost of each unit of a read, in nanoseconds of a worker: processor time, a time for each task, and a wait for each bucket.

    A whole number, so that sums are the same on every host. ``to_buckets``: true for each target in a bucket.
    """
    is_far = any(side.is_distant for side in fills[0].sources)
    per_byte = [_byte_seconds(is_bucket) for is_bucket in to_buckets]
    seconds = read_seconds(read, fills, _byte_seconds(is_far), per_byte)
    requests = is_far + sum([to_buckets[at.target] for at in read.fills])
    own_s = SECONDS_PER_UNIT + requests * RequestPlan.LATENCY_S / workers
    return round(1e9 * (own_s + seconds / max(1, read.units.count)))


def _byte_seconds(is_bucket: bool) -> float:
    return SECONDS_PER_BUCKET_BYTE if is_bucket else SECONDS_PER_FILE_BYTE


def limited_seconds(
    requests: Requests, source: RequestRates | None, targets: Sequence[RequestRates | None]
) -> float:
    """The shortest time in which stores with these rates answer so many requests. Reads and writes overlap; the lowest limit counts."""
    reads = requests.list + requests.head + requests.get
    writes = requests.put + requests.part + requests.copy + requests.delete
    written = [rates for rates in targets if rates is not None]
    read = [source, *written] if source is not None else written
    return max(
        (
            *(_seconds(reads, each.reads_per_s, each.doubling_s) for each in read),
            *(_seconds(writes, each.writes_per_s, each.doubling_s) for each in written),
        ),
        default=0.0,
    )


def _seconds(count: float, per_s: float, doubling_s: float | None) -> float:
    """The time of ``count`` requests at a rate that doubles every ``doubling_s``."""
    seconds = 0.0
    while doubling_s is not None and count > per_s * doubling_s:
        count -= per_s * doubling_s
        seconds += doubling_s
        per_s *= 2
    return seconds + count / per_s
