"""Many calls to a store: several at once in a bucket, one after the other on a disk; and many short ranges in few requests."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import closing, suppress
from typing import TypeVar

from msgspec import Struct

from reshard.errors import StorageError
from reshard.storage.base import Store
from reshard.storage.buckets.file import request_threads
from reshard.storage.host import default_workers
from reshard.storage.location import is_in_bucket, open_file

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
                waiting.append(_begun(threads, function, item))
                if len(waiting) >= _AHEAD:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()


def _begun(threads: Executor, function: Callable[[T], R], item: T) -> Future[R]:
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
    if not any(map(is_in_bucket, places)):
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
