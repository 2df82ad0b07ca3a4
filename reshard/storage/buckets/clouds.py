"""The traits of each cloud's requests, and their rates in a second."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from reshard.storage.buckets.urls import Scheme
from reshard.storage.requests import RequestRates, RequestTraits

REQUESTS: Mapping[Scheme, RequestTraits] = MappingProxyType(
    {
        "s3": RequestTraits(puts_of_copy=2, rates=RequestRates(5500, 3500)),
        "gs": RequestTraits(
            deleted_at_once=1,
            reads_uploads_back=True,
            rates=RequestRates(5000, 1000, 1200),
        ),
        "az": RequestTraits(deleted_at_once=256, rates=RequestRates(20_000, 20_000)),
    }
)
"""The traits by scheme. The clouds publish these rates. A target's objects count as one prefix and one bucket: clouds split them
only under load.

- S3: the guaranteed rate of each partitioned prefix (Amazon S3 User Guide, "Best practices design patterns: optimizing
  Amazon S3 performance").
- Google Cloud Storage: the initial rate of a bucket; it grows if requests double no faster than every 20 minutes ("Request rate
  and access distribution guidelines").
- Azure: the rate of a standard account, for reads and writes together; here each has all of it ("Scalability and performance targets for
  standard storage accounts").
"""
