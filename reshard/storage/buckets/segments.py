"""The records of a transaction in a bucket: objects of checked lines, one every few seconds.

::

    journal/1795521600000-000000    the header: {"format": "reshard.journal", "version": 2, "identity": {…}}
    journal/1795521600000-000001    records, a line each
    …

The first number is the fence of the run that wrote them, the second counts segments. The records of the highest fence with a
header are valid: a header is put after the records that it takes over, and the segments of other fences are deleted then. The
records of a lost segment are lost, so that their work is done again.
"""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from reshard.errors import MissingError, ResumeError
from reshard.storage.buckets import objects
from reshard.storage.buckets.store import BucketStore
from reshard.storage.checked_lines import JOURNAL, JOURNAL_VERSION, checked_line, valid_lines

FLUSH_S = 5.0
SEGMENT_BYTES = 1 << 20
"""Waiting records are put when they reach this age or this size."""

KEPT_BYTES = 4 << 20
"""Bytes of its own records that a run keeps in memory, since it reads them again before it publishes."""

PARTS_REQUEST = "parts/request"
"""The file that all parts of a conversion share; ``storage.parts`` writes it."""

_NAME = re.compile(r"journal/([0-9]{6,})-([0-9]{6,})")


class Segments:
    """The records of one run: reads those of an earlier run, and writes its own. Safe from any thread.

    Only the run that has the lease writes here, so that one listing is enough.
    """

    def __init__(self, store: BucketStore, folder: str, fence: int) -> None:
        self._store = store
        self._folder = folder
        self._fence = fence
        self._next = 1
        self._waiting = bytearray()
        self._since = 0.0
        self._put_paths: list[str] = []
        self._kept: dict[str, bytes] = {}
        self._earlier: list[str] | None = None
        self._has_parts = False
        self._is_started = False
        self._lock = threading.Lock()

    @property
    def has_earlier(self) -> bool:
        """True if an earlier run left records."""
        return bool(self._earlier_paths())

    @property
    def has_parts(self) -> bool:
        """True if parts of a conversion (``storage.parts``) were begun."""
        self._earlier_paths()
        return self._has_parts

    def left_by(self) -> Mapping[str, Any] | None:
        """The run that left records, as it described itself; None if none can be read.

        Raises ResumeError if another version of this program wrote them.
        """
        return _left_by(self._store, self._earlier_paths())

    def records(self) -> Iterator[bytes]:
        """The records of this run once it has started, else those of the earlier run, in the order of their addition."""
        paths = self._put_paths if self._is_started else self._earlier_paths()
        return _records_in(self._store, paths, self._kept)

    def delete(self) -> None:
        """Deletes every segment, of this run and of earlier ones."""
        with self._lock:
            objects.delete(self._store, sorted({*self._earlier_paths(), *self._put_paths}))
            self._put_paths, self._earlier, self._is_started = [], [], False
            self._kept.clear()

    def _earlier_paths(self) -> list[str]:
        if self._earlier is None:
            names = list(self._store.files(self._folder))
            self._earlier = _paths(self._folder, names)
            self._has_parts = PARTS_REQUEST in names
        return self._earlier

    def start(self, made_by: Mapping[str, Any], records: Iterable[str] = ()) -> None:
        """Puts these records and then the header, which makes them valid; removes those of earlier runs."""
        for record in records:
            self.append(record)
        self.flush()  # before the header, against a crash that leaves a header without them
        document = {"format": JOURNAL, "version": JOURNAL_VERSION, "identity": dict(made_by)}
        self._put(0, checked_line(json.dumps(document, sort_keys=True)))
        # After the header, against a crash that leaves neither these records nor the earlier ones.
        earlier, self._earlier, self._is_started = self._earlier_paths(), [], True
        objects.delete(self._store, [path for path in earlier if path not in self._put_paths])

    def append(self, record: str) -> None:
        """Adds a record; it is put soon, or now if many wait."""
        with self._lock:
            if not self._waiting:
                self._since = time.monotonic()
            self._waiting += checked_line(record)
            if len(self._waiting) >= SEGMENT_BYTES:
                self._flush()

    def flush(self, *, if_due: bool = False) -> None:
        """Puts the waiting records; ``if_due``: only if they have waited long enough."""
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
        self._put_paths.append(path)
        if sum(map(len, self._kept.values())) + len(data) <= KEPT_BYTES:
            self._kept[path] = data


def _left_by(store: BucketStore, paths: Sequence[str]) -> Mapping[str, Any] | None:
    """The run that the newest readable header names; None if none can be read."""
    fence = _fence_that_counts(paths)
    if fence is None:
        return None
    path = next(path for path in paths if _number(path) == (fence, 0))
    line = next(valid_lines(_content(store, path)), b"")
    try:
        document = json.loads(line)
        known, version, made_by = document["format"], document["version"], document["identity"]
    except (ValueError, TypeError, KeyError):
        return None
    if (known, version) != (JOURNAL, JOURNAL_VERSION):
        raise ResumeError(
            f"an unfinished run was recorded by another version of reshard: {store.text(path)} has version {version!r}, "
            f"expected {JOURNAL_VERSION}; resume with that version, or start over (restart)"
        )
    return made_by if isinstance(made_by, dict) else None


def _records_in(
    store: BucketStore, paths: Sequence[str], kept: Mapping[str, bytes]
) -> Iterator[bytes]:
    fence = _fence_that_counts(paths)
    for path in list(paths):
        found, number = _number(path)
        if found == fence and number:
            yield from valid_lines(kept[path] if path in kept else _content(store, path))


def _number(path: str) -> tuple[int, int]:
    """Fence and number of a segment."""
    fence, _, number = path.rpartition("/")[2].partition("-")
    return int(fence), int(number)


def _paths(folder: str, names: Iterable[str]) -> list[str]:
    """Every segment, by fence and number."""
    found = map(_NAME.fullmatch, names)
    numbers = sorted((int(match[1]), int(match[2])) for match in found if match is not None)
    return [f"{folder}/journal/{fence:06d}-{number:06d}" for fence, number in numbers]


def _fence_that_counts(paths: Iterable[str]) -> int | None:
    return max((fence for fence, number in map(_number, paths) if not number), default=None)


def _content(store: BucketStore, path: str) -> bytes:
    """The content of a segment; empty if it is lost. A damaged line is read again: the damage may have happened on the way."""
    data = _read(store, path)
    is_whole = sum(1 for _ in valid_lines(data)) == data.count(b"\n")
    return data if is_whole else _read(store, path)


def _read(store: BucketStore, path: str) -> bytes:
    file, data = store.open(path), bytearray()
    try:
        while more := file.read(len(data), 2 * SEGMENT_BYTES):
            data += more
    except MissingError:
        return b""
    return bytes(data)
