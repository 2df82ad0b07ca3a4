"""How many requests in a second a bucket answers, by what its cloud publishes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType

from msgspec import Struct

from reshard.storage.requests import Requests


class StoreLimit(Struct, frozen=True):
    """Requests that a store answers in each second.

    Attributes:
        reads_per_s: listings, looks at objects, and reads.
        writes_per_s: puts, parts, copies and deletions.
        doubling_s: after so many seconds at the limit it doubles, and so on; None where it stays.
    """

    reads_per_s: float
    writes_per_s: float
    doubling_s: float | None = None


LIMITS: Mapping[str, StoreLimit] = MappingProxyType(
    {
        "s3": StoreLimit(5500, 3500),
        "gs": StoreLimit(5000, 1000, 1200),
        "az": StoreLimit(20_000, 20_000),
    }
)
"""By scheme. A target's objects count as one prefix and one bucket: clouds split them only under load.

- S3: at least so many for each partitioned prefix (Amazon S3 User Guide, "Best practices design patterns: optimizing
  Amazon S3 performance").
- Google Cloud Storage: of a bucket at first; it grows if the rate is doubled no faster than every 20 minutes ("Request rate
  and access distribution guidelines").
- Azure: of a standard account, reads and writes together; here each has all of it ("Scalability and performance targets for
  standard storage accounts").
"""


def limited_seconds(requests: Requests, sources: Iterable[str], targets: Iterable[str]) -> float:
    """The least time in which buckets answer so many requests. Reads and writes overlap.

    Args:
        sources, targets: the schemes of the buckets; of several the one with the lowest limit counts.
    """
    writing = [LIMITS[scheme] for scheme in targets]
    every = [*writing, *(LIMITS[scheme] for scheme in sources)]
    reads = requests.list + requests.head + requests.get
    writes = requests.put + requests.part + requests.copy + requests.delete
    read_s = (_seconds(reads, limit.reads_per_s, limit.doubling_s) for limit in every)
    write_s = (_seconds(writes, limit.writes_per_s, limit.doubling_s) for limit in writing)
    return max((*read_s, *write_s), default=0.0)


def _seconds(count: float, per_s: float, doubling_s: float | None) -> float:
    """The time of ``count`` requests at a rate that doubles every ``doubling_s``."""
    seconds = 0.0
    while doubling_s is not None and count > per_s * doubling_s:
        count -= per_s * doubling_s
        seconds += doubling_s
        per_s *= 2
    return seconds + count / per_s
