"""The records of a transaction in a bucket: objects of checked lines, one every few seconds.

::

    journal/000003-000000    the header: {"format": "reshard.journal", "version": 1, "identity": {…}}
    journal/000003-000001    records, a line each
    …

The first number is the fence of the run that wrote them, the second counts. The records of the highest fence with a header
count: a header is put after the records that it takes over, and the segments of other fences are deleted then. A segment that
is lost loses its records, so that their work is done again.
"""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from reshard.errors import ResumeError
from reshard.storage.buckets import objects
from reshard.storage.buckets.store import BucketStore
from reshard.storage.checked_lines import believed_lines, checked_line

FORMAT = "reshard.journal"
VERSION = 1

FLUSH_S = 5.0
SEGMENT_BYTES = 1 << 20
"""Records are put when they are so old, or so many."""

_NAME = re.compile(r"journal/([0-9]{6,})-([0-9]{6,})")


class Segments:
    """Writes the records of one run; safe from any thread."""

    def __init__(self, store: BucketStore, folder: str, fence: int) -> None:
        self._store = store
        self._folder = folder
        self._fence = fence
        self._next = 1
        self._waiting = bytearray()
        self._since = 0.0
        self._put_paths: set[str] = set()
        self._lock = threading.Lock()

    def start(self, identity: Mapping[str, Any], records: Iterable[str] = ()) -> None:
        """Puts these records and then the header, which makes them count; removes those of earlier runs."""
        earlier = set(_paths(self._store, self._folder))
        for record in records:
            self.append(record)
        self.flush()
        document = {"format": FORMAT, "version": VERSION, "identity": dict(identity)}
        self._put(0, checked_line(json.dumps(document, sort_keys=True)))
        objects.delete(self._store, sorted(earlier - self._put_paths))

    def append(self, record: str) -> None:
        """Adds a record; it is put soon, or now if many wait."""
        with self._lock:
            if not self._waiting:
                self._since = time.monotonic()
            self._waiting += checked_line(record)
            if len(self._waiting) >= SEGMENT_BYTES:
                self._flush()

    def flush(self, *, if_due: bool = False) -> None:
        """Puts the records that wait; ``if_due``: only if they have waited long enough."""
        with self._lock:
            if self._waiting and not (if_due and time.monotonic() < self._since + FLUSH_S):
                self._flush()

    def _flush(self) -> None:
        if self._waiting:
            self._put(self._next, bytes(self._waiting))
            self._next += 1
            self._waiting.clear()

    def _put(self, number: int, data: bytes) -> None:
        path = f"{self._folder}/journal/{self._fence:06d}-{number:06d}"
        objects.put(self._store, path, data)
        self._put_paths.add(path)


def read_identity(store: BucketStore, folder: str) -> Mapping[str, Any] | None:
    """The identity of the run that left records; None where there is none that can be read.

    Raises ResumeError where another version of this program wrote them.
    """
    fence = _fence_that_counts(_paths(store, folder))
    if fence is None:
        return None
    path = f"{folder}/journal/{fence:06d}-000000"
    line = next(believed_lines(_content(store, path)), b"")
    try:
        document = json.loads(line)
        known, version, identity = document["format"], document["version"], document["identity"]
    except (ValueError, TypeError, KeyError):
        return None
    if (known, version) != (FORMAT, VERSION):
        raise ResumeError(
            f"an unfinished run was recorded by another version of reshard: {store.text(path)} has version {version!r}, "
            f"expected {VERSION}; resume with that version, or start over (restart)"
        )
    return identity if isinstance(identity, dict) else None


def read_records(store: BucketStore, folder: str) -> Iterator[bytes]:
    """The records of the run that left some, in the order in which they were added."""
    paths = _paths(store, folder)
    fence = _fence_that_counts(paths)
    for path in paths:
        found = _NAME.fullmatch(path[len(folder) + 1 :])
        if found is not None and int(found[1]) == fence and int(found[2]):
            yield from believed_lines(_content(store, path))


def _paths(store: BucketStore, folder: str) -> list[str]:
    """Every segment, by fence and number."""
    found = (_NAME.fullmatch(f"journal/{name}") for name in store.files(f"{folder}/journal"))
    numbers = sorted((int(match[1]), int(match[2])) for match in found if match is not None)
    return [f"{folder}/journal/{fence:06d}-{number:06d}" for fence, number in numbers]


def _fence_that_counts(paths: Iterable[str]) -> int | None:
    names = (path.rpartition("/")[2].partition("-") for path in paths)
    return max((int(fence) for fence, _, number in names if not int(number)), default=None)


def _content(store: BucketStore, path: str) -> bytes:
    found = store.status(path)
    return b"" if found is None else store.open(path).read(0, found.nbytes)
