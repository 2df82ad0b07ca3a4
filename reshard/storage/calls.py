"""Many calls to a store: several at once in a bucket, short ranges in few requests, and small reads kept for a while.

A checkpoint is looked at several times before it is read: its leaves are counted to price them, its record is compared, a plan
is made and then carried out. On a disk the kernel caches these reads. In a bucket each read is a request; the content of a
version never changes, so that it can be kept here.
"""

from __future__ import annotations

import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import closing, suppress
from typing import TypeVar

from msgspec import Struct

from reshard.errors import StorageError
from reshard.storage.base import FileStatus, OpenFile, Store
from reshard.storage.buckets.file import request_threads
from reshard.storage.host import default_workers
from reshard.storage.location import Location, is_in_bucket, is_in_hub, open_file

REQUESTS_AT_ONCE = 32
"""At 30 ms these make a thousand requests a second, the limit of a new bucket of Google Cloud."""

_AHEAD = 4 * REQUESTS_AT_ONCE
"""The most results that wait for the caller."""

T = TypeVar("T")
R = TypeVar("R")


def each_at_once(store: Store, function: Callable[[T], R], items: Iterable[T]) -> Iterator[R]:
    """The function's result for each item, in order, as ``map`` gives them."""
    if not store.traits.by_requests:
        yield from map(function, items)
        return
    waiting: deque[Future[R]] = deque()
    with ThreadPoolExecutor(REQUESTS_AT_ONCE, "reshard.metadata") as threads:
        try:
            for item in items:
                waiting.append(_submitted(threads, function, item))
                if len(waiting) >= _AHEAD:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()


def _submitted(threads: Executor, function: Callable[[T], R], item: T) -> Future[R]:
    """The call, submitted to a thread; made here if the interpreter exits, or the system allows no more threads."""
    try:
        return threads.submit(function, item)
    except RuntimeError:
        done: Future[R] = Future()
        done.set_result(function(item))
        return done


WAITING_WORKERS = 16
WAITING_WORKER_BYTES = 32 << 20
"""With buckets this is the default number of workers, if each gets that much memory: most of them wait for answers."""


def default_workers_for(max_memory: int, places: Iterable[object]) -> int:
    """The default number of workers for reading and writing at these paths and URLs."""
    if not any(is_in_bucket(place) or is_in_hub(place) for place in places):
        return default_workers()
    return max(default_workers(), min(WAITING_WORKERS, max_memory // WAITING_WORKER_BYTES))


GAP_BYTES = 32 << 10
REQUEST_BYTES = 512 << 10
"""Ranges with short gaps between them are read together, up to this size."""


class ByteRange(Struct, frozen=True, order=True):
    """A range of a file; ``path`` and ``version`` as for ``open_file``."""

    path: str
    version: str
    offset: int
    nbytes: int


def read_many(store: Store, parts: Iterable[ByteRange]) -> dict[ByteRange, bytes]:
    """The bytes of each range, without ranges that cannot be read whole; none if the store answers short reads at once."""
    if not store.traits.by_requests:
        return {}  # and no range is asked for: looking them up may take calls
    requests = _together(sorted(set(parts)))
    found: dict[ByteRange, bytes] = {}
    for read in request_threads().map(_read, requests):
        found.update(read)
    return found


def _together(parts: Sequence[ByteRange]) -> list[list[ByteRange]]:
    requests: list[list[ByteRange]] = []
    for part in parts:
        if not requests or not _fits(requests[-1], part):
            requests.append([])
        requests[-1].append(part)
    return requests


def _fits(request: Sequence[ByteRange], part: ByteRange) -> bool:
    first, last = request[0], request[-1]
    return (
        (part.path, part.version) == (first.path, first.version)
        and part.offset - (last.offset + last.nbytes) <= GAP_BYTES
        and part.offset + part.nbytes - first.offset <= REQUEST_BYTES
    )


def _read(parts: Sequence[ByteRange]) -> dict[ByteRange, bytes]:
    start = parts[0].offset
    end = max(part.offset + part.nbytes for part in parts)
    with suppress(StorageError), closing(open_file(parts[0].path, parts[0].version)) as file:
        data = file.read(start, end - start)
        cut = {part: data[part.offset - start :][: part.nbytes] for part in parts}
        return {part: text for part, text in cut.items() if len(text) == part.nbytes}
    return {}


MOST_BYTES = 16 << 20
"""The most bytes kept in this process."""

_LARGEST_BYTES = 4 << 20
"""A larger read is not kept: it would evict all others."""

_Key = tuple[str, str, int, int]


class _RecentReads:
    """The latest reads; safe from any thread."""

    def __init__(self) -> None:
        self._kept: OrderedDict[_Key, bytes] = OrderedDict()
        self._nbytes = 0
        self._lock = threading.Lock()

    def get(self, key: _Key) -> bytes | None:
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
            return self._kept.get(key)

    def keep(self, key: _Key, data: bytes) -> None:
        with self._lock:
            if key not in self._kept:
                self._kept[key] = data
                self._nbytes += len(data)
            while self._nbytes > MOST_BYTES:
                self._nbytes -= len(self._kept.popitem(last=False)[1])


_READS = _RecentReads()


def open_for_parts(file: Location, found: FileStatus, block_bytes: int = 0) -> OpenFile:
    """Opens a file for many short reads; in a bucket they are kept, as those of ``read_part``.

    ``block_bytes``: in a bucket the file is read in blocks of this size; 0 reads what is asked for.
    """
    if file.traits.by_requests:
        return _Parts(file, found, block_bytes)
    return file.open(found.version)


class _Parts(Struct, frozen=True):
    """An object that is read in parts, which are kept; implements ``base.OpenFile``."""

    file: Location
    found: FileStatus
    block_bytes: int

    def fill(self, offset: int, out: memoryview) -> int:
        done = 0
        while done < len(out):
            number, start = divmod(offset + done, self.block_bytes or 1 << 62)
            if self.block_bytes:
                block = read_part(
                    self.file, self.found, number * self.block_bytes, self.block_bytes
                )
                data = block[start : start + len(out) - done]
            else:
                data = read_part(self.file, self.found, start, len(out) - done)
            if not data:  # the end of the file
                break
            out[done : done + len(data)] = data
            done += len(data)
        return done

    def read(self, offset: int, nbytes: int) -> bytes:
        if not self.block_bytes:
            return read_part(self.file, self.found, offset, nbytes)
        out = bytearray(nbytes)
        done = self.fill(offset, memoryview(out))
        return bytes(out[:done])

    def close(self) -> None:
        """Does nothing: no connection is open."""


def read_part(file: Location, found: FileStatus, offset: int, nbytes: int, what: str = "") -> bytes:
    """The bytes of a file from ``offset``, fewer only at its end; ``found`` is its status, ``what`` its purpose.

    Raises StorageError if it cannot be read, FormatError if it is not a plain file.
    """
    if not found.version or nbytes > _LARGEST_BYTES:
        with closing(file.open(found.version, what)) as opened:
            return opened.read(offset, nbytes)
    key = (str(file), found.version, offset, nbytes)
    data = _READS.get(key)
    if data is None:
        with closing(file.open(found.version, what)) as opened:
            data = opened.read(offset, nbytes)
        _READS.keep(key, data)
    return data
