"""Requests to buckets by kind, with the bytes that they carried, for which clouds charge; and the traits of stores."""

from __future__ import annotations

from typing import Annotated, ClassVar

from msgspec import Meta, Struct, structs

from reshard.answers.record import Json, Record

KINDS = ("list", "head", "get", "put", "part", "delete", "copy")
MEMBERS = (*KINDS, "received_bytes", "sent_bytes", "total")


class Requests(Record, frozen=True):
    """Requests to buckets, by kind, and bytes of objects.

    Attributes:
        list: a page of a listing, of up to a thousand names.
        head: a look at one object.
        get: a range of an object.
        put: an object put whole, and the begin and the end of an upload in parts.
        part: of an upload.
        delete: one object, or as many as the store deletes at once (``RequestTraits.deleted_at_once``).
        copy: an object copied by the store itself.
        received_bytes: of objects that were read.
        sent_bytes: of objects that were put.
    """

    list: int = 0
    head: int = 0
    get: int = 0
    put: int = 0
    part: int = 0
    delete: int = 0
    copy: int = 0
    received_bytes: int = 0
    sent_bytes: int = 0

    JSON: ClassVar[Json] = Json(MEMBERS)

    def __add__(self, other: Requests) -> Requests:
        return Requests(*map(sum, zip(structs.astuple(self), structs.astuple(other), strict=True)))

    def __sub__(self, other: Requests) -> Requests:
        return self + other * -1

    def __mul__(self, times: int) -> Requests:
        return Requests(*(times * value for value in structs.astuple(self)))

    @property
    def by_kind(self) -> dict[str, int]:
        """The number of each kind, in the order of display."""
        return {kind: getattr(self, kind) for kind in KINDS}

    @property
    def total(self) -> int:
        """The number of all requests."""
        return sum(self.by_kind.values())


class PlannedRequests(Requests, frozen=True, kw_only=True):
    """Requests to buckets, and the time that they take."""

    JSON: ClassVar[Json] = Json((*MEMBERS, "latency_s", "bytes_per_s", "seconds"))

    latency_s: Annotated[float, Meta(description="Of one request.")]
    bytes_per_s: Annotated[float, Meta(description="Of all requests together.")]
    seconds: float


NONE = Requests()

PAGE_OBJECTS = 1000
"""Names in one request of a listing."""


def pages_of(objects: int) -> int:
    """Number of requests that list so many objects."""
    return max(1, -(-objects // PAGE_OBJECTS))


class RequestRates(Struct, frozen=True):
    """Numbers of requests that a store answers in each second.

    Attributes:
        reads_per_s: listings, looks at objects, and reads.
        writes_per_s: puts, parts, copies and deletions.
        doubling_s: seconds at the limit after which it doubles, again and again; None for a constant limit.
    """

    reads_per_s: float
    writes_per_s: float
    doubling_s: float | None = None


class RequestTraits(Struct, frozen=True):
    """The traits of requests to a store, and their rates. Plans use them to count and price requests.

    Attributes:
        deleted_at_once: the most files that one request deletes.
        reads_uploads_back: true if a file that was uploaded in parts is read back, since no answer of the store proves it.
        puts_of_copy: puts beside a copy by the store itself; two if the copy is an upload of one part.
        rates: None if calls are no requests, as on a disk.
    """

    deleted_at_once: int = 1000
    reads_uploads_back: bool = False
    puts_of_copy: int = 0
    rates: RequestRates | None = None
