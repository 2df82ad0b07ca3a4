"""The protocol of a store, a place with files, and the records that its calls exchange; the traits of stores; and requests by kind.

A store is the local file system or a bucket. Checkpoints are read and written through ``Location``, a path in a store, so that
formats are independent of stores. Paths are texts with slashes; every failure is a StorageError that names the file.

Requests to buckets are counted by kind, with the bytes that they carried, for which clouds charge.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Annotated, ClassVar, Literal, Protocol

from msgspec import Meta, Struct, structs

from reshard.answers.record import Json, Record
from reshard.errors import PlanError

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


FileKind = Literal["file", "folder", "other"]
"""``other`` is anything without bytes to read, such as a named pipe."""


class FileStatus(Struct, frozen=True):
    """The status of a path.

    Attributes:
        nbytes: of a file.
        version: the store's own name for the file's content (ETag, generation), with which a later read can ask for
            exactly that content; "" if the store has no such names.
    """

    kind: FileKind
    nbytes: int = 0
    version: str = ""


class ChunkWriting(Struct, frozen=True):
    """The way in which a store takes a chunk.

    Attributes:
        in_order: true if the chunks of a shared file are written in their order, by one task.
        put_bytes: memory beside the chunk until it is written; None if it is written in place.
        takes_ranges: true if parts of the chunk are written in any order, by any task.
        ends_with_chunk: true if the memory is free once the chunk is written.
    """

    in_order: bool
    put_bytes: int | None
    takes_ranges: bool
    ends_with_chunk: bool


class Traits(Struct, frozen=True):
    """The properties of a place with files, known without a request; the defaults are those of a local disk.

    Attributes:
        prefix: the text before a slash and a path, such as ``s3://bucket``; "" if the path is the whole text.
        range_bytes: the best size of one request, since each has a long latency; 0 if short reads are cheap.
        memory_bytes: memory that the store keeps for its files: the listing of a view of a bucket.
        renames: true if a rename gives a complete folder its name; else a marker file in it shows that it is complete.
        in_place: true if a part of a file can be written, and written again; else a file is written whole, once, and in order.
        has_folders: true if folders are made before files are written in them.
        has_versions: true if each file has a version that identifies its content.
        has_free_bytes: true if room is limited, and the store reports the rest.
        by_hosts: true if processes on other hosts may write there too.
        requests: the traits and rates of its requests.
    """

    prefix: str = ""
    range_bytes: int = 0
    memory_bytes: int = 0
    renames: bool = True
    in_place: bool = True
    has_folders: bool = True
    has_versions: bool = False
    has_free_bytes: bool = True
    by_hosts: bool = False
    requests: RequestTraits = RequestTraits()

    def text(self, path: str) -> str:
        """The users' text for a path; ``locate`` gives the same location for it in any process."""
        return f"{self.prefix}/{path}" if self.prefix and path else self.prefix or path

    @property
    def by_requests(self) -> bool:
        """True if each call is a request to a service: it has a long latency and is counted."""
        return self.range_bytes > 0

    @property
    def by_one_task(self) -> bool:
        """True if one task must write each file, or the tasks of one batch in order."""
        return self.by_hosts or not self.in_place

    @property
    def read_ahead_bytes(self) -> int:
        """Memory for the requests that a stream makes ahead; 0 if short reads are cheap."""
        return READ_AHEAD_RANGES * self.range_bytes

    def put_bytes(self, nbytes: int, *, in_parts: bool = False) -> int | None:
        """Memory that a file of ``nbytes`` takes beside its bytes until it is written; None if it is written in place.

        ``in_parts``: true if the bytes come in pieces, or are a piece of a larger file.
        """
        if self.in_place:
            return None
        from reshard.storage.buckets.objects import put_memory_bytes

        return put_memory_bytes(nbytes, in_parts=in_parts)

    def chunk_writing(
        self, nbytes: int, *, is_shared: bool, database_bytes: int | None
    ) -> ChunkWriting:
        """The way in which a chunk is written here.

        Args:
            nbytes: of the chunk.
            is_shared: true if chunks share files, as ranges of them.
            database_bytes: memory that a database takes for the chunk; None if files hold it.
        """
        in_order = is_shared and self.by_one_task
        put_bytes = self.put_bytes(nbytes, in_parts=in_order)
        if put_bytes is None:
            put_bytes = database_bytes
        return ChunkWriting(
            in_order,
            put_bytes,
            takes_ranges=put_bytes is None and not self.by_one_task,
            ends_with_chunk=put_bytes is None or not (self.in_place or in_order),
        )

    def refuse_database(self) -> None:
        """Raises PlanError: a database needs a file system, and is written by one process."""
        if self.by_hosts:
            raise PlanError(
                "an OCDBT database is written by one process, but the tasks run in others; leave it out (ocdbt), so that chunks are files, or "
                "convert with threads of one host (executor, part)"
            )
        if not self.in_place:
            raise PlanError(
                "an OCDBT database is not written to a bucket; leave it out (ocdbt), so that chunks are objects, or write to a local "
                "disk and copy the folder from there, commit_success.txt last"
            )


ON_DISK = Traits()

READ_AHEAD_RANGES = 3
"""Requests that a stream has ahead of its reader: with 30 ms and 90 MB/s for each, one worker reads at some 200 MB/s."""


class Entry(Struct, frozen=True):
    """A name in a folder.

    Attributes:
        is_folder: true if it is a folder or a link to one.
        is_link: true if it is a symbolic link; only local folders have links.
    """

    name: str
    is_folder: bool
    is_link: bool = False


class OpenFile(Protocol):
    """A file that is open for reading. It is used by one thread at a time."""

    def fill(self, offset: int, out: memoryview) -> int:
        """Fills ``out`` with the bytes from ``offset``; returns their number, smaller only at the file's end."""
        ...

    def read(self, offset: int, nbytes: int) -> bytes:
        """The bytes from ``offset``, fewer only at the file's end."""
        ...

    def close(self) -> None:
        """Closes the file; may be called twice."""
        ...


class Pieces(Struct, frozen=True):
    """The content of a file, in order, and its size."""

    pieces: Iterable[bytes | memoryview]
    nbytes: int


WriteMode = Literal["whole", "new", "replace"]
"""The ways of writing a file.

- ``whole``: nothing is synced. An existing file is replaced if the store writes in place; else TargetExistsError is
  raised for it, unless it has the same bytes.
- ``new``: durably, in one step, and only if nothing is there, else TargetExistsError. Missing folders are made.
- ``replace``: durably, in one step, in place of an existing file.
"""


class Store(Protocol):
    """A place with files. Safe from any thread, and in another process after pickling.

    ``what`` names the purpose of a file, and begins the message of an error.
    """

    @property
    def traits(self) -> Traits:
        """The traits of this place."""
        ...

    def status(self, path: str, what: str = "") -> FileStatus | None:
        """The status of a path, links followed; None if nothing is there.

        Raises StorageError if the store refuses access, which does not prove that nothing is there.
        """
        ...

    def entries(self, folder: str) -> Sequence[Entry]:
        """Every name in a folder, sorted. Raises StorageError if it cannot be listed."""
        ...

    def files(self, folder: str) -> Iterator[str]:
        """The path from the folder of every file below it, in no certain order; links to folders count as files."""
        ...

    def open(self, path: str, version: str = "", what: str = "") -> OpenFile:
        """Opens a plain file for reading, in that version if one is given.

        Raises StorageError if it cannot be opened, FormatError if it is not a plain file.
        """
        ...

    def view(self, folder: str, /) -> Store:
        """This store, for reading a checkpoint in ``folder``: it must not lead elsewhere, nor change meanwhile.

        Locally, symbolic links that lead out of the folder are refused, except links from a snapshot in the cache of
        huggingface_hub to its blobs. A bucket is listed once: later lookups are answered from the listing, and reads
        ask for the listed versions. ``folder`` may also be a single file.
        """
        ...

    def write(self, path: str, data: bytes | memoryview | Pieces, how: WriteMode = "whole") -> str:
        """Writes a whole file; returns its version, "" if files have none.

        A store that does not write in place keeps some of the pieces in memory (``Traits.put_bytes``).
        """
        ...

    def remove(self, path: str) -> None:
        """Removes a file, if it is there."""
        ...


class StoreWrapper(Struct, frozen=True):
    """Passes every call on to ``store``; implements ``base.Store``."""

    store: Store

    @property
    def traits(self) -> Traits:
        return self.store.traits

    def status(self, path: str, what: str = "") -> FileStatus | None:
        return self.store.status(path, what)

    def entries(self, folder: str) -> Sequence[Entry]:
        return self.store.entries(folder)

    def files(self, folder: str) -> Iterator[str]:
        return self.store.files(folder)

    def open(self, path: str, version: str = "", what: str = "") -> OpenFile:
        return self.store.open(path, version, what)

    def view(self, folder: str) -> Store:
        return self.store.view(folder)

    def write(self, path: str, data: bytes | memoryview | Pieces, how: WriteMode = "whole") -> str:
        return self.store.write(path, data, how)

    def remove(self, path: str) -> None:
        self.store.remove(path)
