"""Buckets, objects and listings in memory, under the conditions that each API sets."""

from __future__ import annotations

import hashlib
import itertools
import threading
import time
from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Iterable, Sequence

import msgspec
from awscrt.checksums import crc32c, crc64nvme

from tests.emulators.apis.error_answers import (
    BUCKET_EXISTS,
    NO_SUCH_BUCKET,
    NO_SUCH_KEY,
    RefusedRequestError,
)

Segments = tuple[memoryview, ...]
LAST_CHARACTER = "\U0010ffff"


class StoredObject(msgspec.Struct, frozen=True):
    """One version of an object; ``modified`` in seconds since 1970, ``headers`` as they were given."""

    segments: Segments
    size: int
    etag: str
    generation: int
    crc32c: int
    crc64: int
    modified: float
    headers: dict[str, str]

    def bytes_between(self, start: int, end: int) -> list[memoryview]:
        found = []
        for segment in self.segments:
            if start < len(segment) and end > 0:
                found.append(segment[max(start, 0) : end])
            start, end = start - len(segment), end - len(segment)
        return found


Condition = Callable[[StoredObject | None], None]
"""Raises RefusedRequestError if what is there does not allow the request."""


class Page(msgspec.Struct, frozen=True):
    """A part of a listing; ``after`` is where the next one begins, or None at the end."""

    entries: list[tuple[str, StoredObject]]
    prefixes: list[str]
    after: str | None


class Bucket:
    """The objects of one bucket, and their keys in order."""

    def __init__(self) -> None:
        self.objects: dict[str, StoredObject] = {}
        self.keys: list[str] = []

    def put(self, key: str, stored: StoredObject) -> None:
        if key not in self.objects:
            insort(self.keys, key)
        self.objects[key] = stored

    def remove(self, key: str) -> None:
        if self.objects.pop(key, None) is not None:
            del self.keys[bisect_left(self.keys, key)]

    def page(
        self, prefix: str, delimiter: str, after: str, limit: int, start: str = "", end: str = ""
    ) -> Page:
        """At most ``limit`` keys and common prefixes behind ``after``, from ``start`` to before ``end``."""
        at = max(bisect_left(self.keys, max(prefix, start)), bisect_right(self.keys, after))
        entries: list[tuple[str, StoredObject]] = []
        prefixes: list[str] = []
        while at < len(self.keys):
            key = self.keys[at]
            if not key.startswith(prefix) or (end and key >= end):
                break
            if len(entries) + len(prefixes) == limit:
                return Page(entries, prefixes, after)
            cut = key.find(delimiter, len(prefix)) if delimiter else -1
            if cut < 0:
                entries.append((key, self.objects[key]))
                after, at = key, at + 1
            else:
                prefixes.append(key[: cut + len(delimiter)])
                after = prefixes[-1] + LAST_CHARACTER
                at = bisect_right(self.keys, after)
        return Page(entries, prefixes, None)


class Objects:
    """All buckets of a server. Every method is whole: two requests never see each other half-done.

    ``has_md5_etags``: whether the ETag of an object that was put whole is its MD5, and that of one in parts the MD5 of those of
    its parts, as Google Cloud's and mostly S3's are.
    """

    def __init__(self) -> None:
        self.buckets: dict[str, Bucket] = {}
        self.lock = threading.RLock()
        self.clock_offset_s = 0.0
        self.has_md5_etags = False
        self._generations = itertools.count(time.time_ns() // 1000)

    def now(self) -> float:
        return time.time() + self.clock_offset_s

    def create_bucket(self, name: str) -> None:
        with self.lock:
            if name in self.buckets:
                raise RefusedRequestError(BUCKET_EXISTS)
            self.buckets[name] = Bucket()

    def delete_bucket(self, name: str) -> None:
        with self.lock:
            self.bucket(name)
            del self.buckets[name]

    def bucket(self, name: str) -> Bucket:
        with self.lock:
            if name not in self.buckets:
                raise RefusedRequestError(NO_SUCH_BUCKET)
            return self.buckets[name]

    def get(self, bucket: str, key: str) -> StoredObject:
        found = self.bucket(bucket).objects.get(key)
        if found is None:
            raise RefusedRequestError(NO_SUCH_KEY)
        return found

    def list(
        self, bucket: str, *, prefix: str, delimiter: str, after: str, limit: int, start: str = "", end: str = ""
    ) -> Page:  # fmt: skip
        with self.lock:
            return self.bucket(bucket).page(prefix, delimiter, after, limit, start, end)

    def put(
        self, bucket: str, key: str, segments: Segments, headers: dict[str, str], condition: Condition,
        parts: Sequence[StoredObject] = (),
    ) -> StoredObject:  # fmt: skip
        """A new version of an object; ``parts`` are those that it was uploaded in."""
        stored = self.version(segments, headers, parts)
        with self.lock:
            held = self.bucket(bucket)
            condition(held.objects.get(key))
            held.put(key, stored)
        return stored

    def version(
        self, segments: Segments, headers: dict[str, str], parts: Sequence[StoredObject] = ()
    ) -> StoredObject:
        """An object that is in no bucket yet. The ETag follows from the bytes, as with S3 and GCS."""
        crc32, crc64, size = checksums(segments)
        etag = f"{crc64:016x}{crc32:08x}{size & 0xFFFFFFFF:08x}"
        if self.has_md5_etags:
            etag = md5(
                [bytes.fromhex(part.etag.partition("-")[0]) for part in parts]
                if parts
                else segments
            )
        if parts:
            etag += f"-{len(parts)}"
        return StoredObject(
            segments, size, etag, next(self._generations), crc32, crc64, self.now(), headers
        )

    def delete(self, bucket: str, key: str, condition: Condition) -> bool:
        """Whether the object was there."""
        with self.lock:
            held = self.bucket(bucket)
            condition(held.objects.get(key))
            there = key in held.objects
            held.remove(key)
        return there


def md5(segments: Iterable[memoryview]) -> str:
    """The MD5 of the bytes, in hexadecimal digits."""
    found = hashlib.md5(usedforsecurity=False)
    for segment in segments:
        found.update(segment)
    return found.hexdigest()


def checksums(segments: Iterable[memoryview]) -> tuple[int, int, int]:
    """CRC32C, CRC-64/NVME and number of bytes."""
    crc32 = crc64 = size = 0
    for segment in segments:
        crc32, crc64 = crc32c(segment, crc32), crc64nvme(segment, crc64)
        size += len(segment)
    return crc32, crc64, size
