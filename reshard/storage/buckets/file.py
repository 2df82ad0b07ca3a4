"""An object in a bucket, open for reading: ranges of one version, several requests at once for a large read, on threads that wait."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from reshard.errors import SourceChangedError, StorageError
from reshard.storage.buckets import counts
from reshard.storage.buckets.errors import bucket_errors, client_errors
from reshard.storage.buckets.listing import version_of
from reshard.storage.buckets.reasons import status_of

if TYPE_CHECKING:
    from obstore.store import ObjectStore


RANGE_BYTES = 8 << 20
"""The largest range of one request. At 30 ms and 90 MB/s a range of 8 MiB takes 0.12 s, three quarters of it data."""

_BEHIND_THE_END = "Wanted range starting at"
"""obstore's words if a store answers a range behind the end with no bytes instead of status 416, as Azurite does."""

_COPY_BYTES = 1 << 20
"""A body is copied into the caller's memory in pieces of this size, so that a request takes little memory of its own."""


class BucketFile:
    """An object; implements ``base.OpenFile``. Nothing is requested before the first read.

    Args:
        version: the ETag that the object must have; "" takes the one of the first read for all later ones.
        nbytes: the object's size; None if it is not known yet.
    """

    def __init__(
        self, client: ObjectStore, key: str, url: str, version: str = "", nbytes: int | None = None, what: str = ""
    ) -> None:  # fmt: skip
        self._client = client
        self._key = key
        self._url = url
        self._version = version
        self._nbytes = nbytes
        self._what = what

    @property
    def is_pinned(self) -> bool:
        """True if all further requests ask for one version, so that several can be made at once."""
        return bool(self._version) or self._nbytes is not None

    def fill(self, offset: int, out: memoryview) -> int:
        if not self.is_pinned:
            done = self._get(offset, out[:RANGE_BYTES])  # gives the version
            return done + self.fill(offset + done, out[done:]) if done == RANGE_BYTES else done
        ranges = equal_ranges(self._there(offset, len(out)))
        if len(ranges) <= 1:
            return self._get(offset, out[: self._there(offset, len(out))])
        others = [
            request_threads().submit(self._get, offset + first, out[first:end])
            for first, end in ranges[1:]
        ]
        try:
            done = self._get(offset, out[: ranges[0][1]])
        finally:
            wait(others)
        return done + sum(_results(others))

    def read(self, offset: int, nbytes: int) -> bytes:
        wanted = self._there(offset, nbytes)
        if wanted <= RANGE_BYTES:
            return b"".join(self._body(offset, wanted)) if wanted else b""
        out = bytearray(wanted)
        done = self.fill(offset, memoryview(out))
        return bytes(memoryview(out)[:done])

    def close(self) -> None:
        """Does nothing: no connection is open."""

    def _there(self, offset: int, nbytes: int) -> int:
        """The number of these bytes that the object has, as far as its size is known."""
        return nbytes if self._nbytes is None else max(0, min(nbytes, self._nbytes - offset))

    def _get(self, offset: int, out: memoryview) -> int:
        """Fills ``out`` by one request, as far as the object goes."""
        if not len(out):
            return 0
        done = 0
        for data in self._body(offset, len(out)):
            out[done : done + len(data)] = data
            done += len(data)
        return done

    def _body(self, offset: int, nbytes: int) -> Iterator[Any]:
        """The pieces of one range, as they arrive; none if the object ends before it."""
        options: Any = {"range": (offset, offset + nbytes)}
        if self._version:
            options["if_match"] = self._version
        with bucket_errors("read", self._url, self._what):
            try:
                found = counts.get(self._client, self._key, options)
            except client_errors() as error:
                if status_of(error) == 416 or _BEHIND_THE_END in str(error):
                    return
                if self._version and isinstance(error, FileNotFoundError):
                    raise self._changed("it was deleted after it was listed") from None
                raise
            self._pin(found.meta)
            expected = min(nbytes, found.meta["size"] - offset)
            for data in found.stream(min_chunk_size=_COPY_BYTES):
                expected -= len(data)
                if expected < 0:
                    break
                counts.received(len(data))
                yield data
        if expected:
            raise StorageError(
                f"cannot read {self._url}: the store sent a body of another length than it announced ({-expected:+,} bytes); "
                "check the network and any proxy, and run again"
            )

    def _pin(self, meta: Any) -> None:
        """Notes version and size, and compares them, since some stores ignore the requested version."""
        if self._nbytes is not None and meta["size"] != self._nbytes:
            raise self._changed(f"it had {self._nbytes:,} bytes, and has {meta['size']:,} now")
        version = version_of(meta["e_tag"])
        if self._version and version and version != self._version:
            raise self._changed("its ETag is another one now")
        self._nbytes, self._version = meta["size"], self._version or version

    def _changed(self, how: str) -> SourceChangedError:
        return SourceChangedError(
            f"{self._url} changed while it was read: {how}; run again once nobody writes to it"
        )


def equal_ranges(nbytes: int) -> list[tuple[int, int]]:
    """Ranges of nearly equal size, none larger than ``RANGE_BYTES``."""
    count = -(-nbytes // RANGE_BYTES)
    edges = [nbytes * i // count for i in range(count + 1)] if count else []
    return list(pairwise(edges))


def _results(futures: list[Future[int]]) -> list[int]:
    return [future.result() for future in futures]


REQUESTS_AT_ONCE = 32
"""Threads for large reads and for reading ahead; threads that read small ranges make their requests themselves."""

_threads: ThreadPoolExecutor | None = None
_lock = threading.Lock()


def request_threads() -> ThreadPoolExecutor:
    """The threads of this process, made on first use. Their tasks must not wait for one another."""
    global _threads
    with _lock:
        if _threads is None:
            _threads = ThreadPoolExecutor(REQUESTS_AT_ONCE, "reshard.requests")
        return _threads


def _forget() -> None:
    global _threads, _lock
    _threads, _lock = None, threading.Lock()


os.register_at_fork(after_in_child=_forget)
