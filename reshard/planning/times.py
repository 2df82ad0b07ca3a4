"""Formulas for the time of a conversion: seconds of processors, of the network and of the stores.

``Price.seconds`` ranks strategies and leaves out what all of them do: reading and writing files or requests, and casts.
The constants here add it. docs/how-to/size-a-conversion.md gives the error of the sum.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from msgspec import Struct
from msgspec.structs import replace

from reshard.geometry.grid import Grid
from reshard.planning.multi_plan import MultiPlan
from reshard.planning.request_plan import RequestPlan
from reshard.planning.tensor_plan import Fill
from reshard.planning.time_plan import Hosts, TimePlan
from reshard.storage.requests import RequestRates, Requests, RequestTraits

SECONDS_PER_FILE_BYTE = 1 / 4e9
"""System calls that read or write a byte of a file (measured: 0.2 to 0.3 s per GB in each direction)."""

SECONDS_PER_BUCKET_BYTE = 1 / 0.8e9
"""Requests that read or write a byte of an object. A copy by the same client takes 2 to 3 s per GB, in and out (measured,
see docs/how-to/buckets.md)."""

SECONDS_PER_CAST_BYTE = 1 / 0.4e9
"""A cast of a byte of the source, with the statistics of what it loses (measured: 2.5 to 3.4 s per GB)."""


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
        every = requests.steps + requests.metadata + requests.data
        received, sent = every.received_bytes, every.sent_bytes
    work = processor_time(
        plan,
        _seconds_per_byte(source, received, from_bucket),
        [_seconds_per_byte(target, sent, to_buckets) for target in targets],
    )
    if hosts.count > 1:
        received += plan.decoded_bytes - from_bucket
        sent += plan.written_bytes - to_buckets
    nic, cores = hosts.nic_bytes_per_s, min(hosts.cores, plan.workers)
    return TimePlan(
        hosts.count,
        cores,
        nic,
        max(work.total_s / (hosts.count * cores), work.longest_task_s),
        None if nic is None else max(received, sent) / hosts.count / nic,
        _store_seconds(requests, source, targets, hosts.count * plan.workers, latency_s),
    )


def _store_seconds(
    requests: RequestPlan | None,
    source: RequestTraits,
    targets: Sequence[RequestTraits],
    at_once: int,
    latency_s: float,
) -> float | None:
    """The requests' own time, with ``at_once`` tasks that wait for answers, or what the clouds' limits allow."""
    if requests is None:
        return None
    waiting_s = replace(requests, workers=at_once).seconds(latency_s, math.inf)
    every = requests.steps + requests.metadata + requests.data
    return max(waiting_s, limited_seconds(every, _rates([source]), _rates(targets)))


def _rates(places: Iterable[RequestTraits]) -> list[RequestRates]:
    """The rates of the places that take requests."""
    return [place.rates for place in places if place.rates is not None]


def _seconds_per_byte(place: RequestTraits, carried: float, moved: int) -> float:
    """Processor seconds of a byte, besides codecs. Of the bytes moved from or to buckets, only those that requests carry pass
    through this program; compression removes the rest, or the store copies it."""
    if place.rates is None:
        return SECONDS_PER_FILE_BYTE
    return min(1.0, carried / moved) * SECONDS_PER_BUCKET_BYTE if moved else 0.0


class ProcessorTime(Struct, frozen=True):
    """The time of the tasks of a run on one processor.

    Attributes:
        total_s: seconds of all tasks together.
        longest_task_s: seconds of the longest task; one task runs on one processor.
    """

    total_s: float
    longest_task_s: float


def processor_time(
    plan: MultiPlan, read_s_per_byte: float, write_s_per_byte: Sequence[float]
) -> ProcessorTime:
    """The processor time of all reads of a plan, each with the targets that it fills.

    Args:
        read_s_per_byte: seconds to get a byte of the source, without decoding.
        write_s_per_byte: for each target, seconds to put a byte, without encoding.
    """
    total_s = longest_s = 0.0
    for read in plan.reads:
        seconds = plan.price(read).decoded_bytes * read_s_per_byte
        for at in read.fills:
            fill = plan.fill(at)
            written_s = fill.price.written_bytes * write_s_per_byte[at.target]
            seconds += fill.price.seconds + written_s + _cast_seconds(fill)
        total_s += seconds
        longest_s = max(longest_s, seconds * _largest_share(read.units))
    return ProcessorTime(total_s, longest_s)


def _cast_seconds(fill: Fill) -> float:
    if not any(piece.is_computed for piece in fill.pieces):
        return 0.0
    return fill.moved_bytes * SECONDS_PER_CAST_BYTE


def _largest_share(units: Grid) -> float:
    """The share of the largest unit in the read."""
    elements = math.prod(units.shape)
    return math.prod(units.largest) / elements if elements else 1.0


def limited_seconds(
    requests: Requests, sources: Sequence[RequestRates], targets: Sequence[RequestRates]
) -> float:
    """The shortest time in which stores answer so many requests. Reads and writes overlap.

    Args:
        sources, targets: request rates of the stores; the lowest limit counts.
    """
    reads = requests.list + requests.head + requests.get
    writes = requests.put + requests.part + requests.copy + requests.delete
    read_s = (
        _seconds(reads, limit.reads_per_s, limit.doubling_s) for limit in (*sources, *targets)
    )
    write_s = (_seconds(writes, limit.writes_per_s, limit.doubling_s) for limit in targets)
    return max((*read_s, *write_s), default=0.0)


def _seconds(count: float, per_s: float, doubling_s: float | None) -> float:
    """The time of ``count`` requests at a rate that doubles every ``doubling_s``."""
    seconds = 0.0
    while doubling_s is not None and count > per_s * doubling_s:
        count -= per_s * doubling_s
        seconds += doubling_s
        per_s *= 2
    return seconds + count / per_s
