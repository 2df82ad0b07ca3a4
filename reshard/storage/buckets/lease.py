"""A lease: an object that names the run that may write a target, renewed while that run lives.

::

    1c291ca3 {"format": "reshard.lease", "version": 1, "target": "gs://…", "fence": 1795521600000, "run": "9f…", "beat": 17,
              "is_free": false, "host": "…", "boot": "…", "namespace": "…", "pid": 4711, "started": 123456}

It is a checked line (``checked_lines``). A run takes the lease by putting it at a free path, or in place of a free or dead lease,
with a greater fence: the time in milliseconds, so that fences also grow after a finished run, which leaves no
lease to count from. Every renewal replaces the version that was put last, so that a run notices that it lost its lease.

A lease is dead when its process is gone, or when its version stays the same for ``DEAD_S`` by the clock of the waiting
run, even if that process exists: it may be stopped, or have failed to give the lease back. A damaged lease is dead, too:
a live holder notices the loss at its next renewal.
"""

from __future__ import annotations

import json
import os
import secrets
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from msgspec import Struct, field

from reshard.errors import (
    MissingError,
    ResumeError,
    SourceChangedError,
    StorageError,
    TargetBusyError,
    TargetExistsError,
)
from reshard.storage.buckets import objects
from reshard.storage.buckets.counts import version_of
from reshard.storage.buckets.errors import NoConditionsError
from reshard.storage.buckets.store import BucketStore
from reshard.storage.checked_lines import checked_line, valid_lines
from reshard.storage.host import process_mark, process_state

FORMAT = "reshard.lease"
VERSION = 1

BEAT_S = 8.0
"""Seconds between renewals."""

SURE_S = 20.0
"""Seconds without a renewal, after which a run must ask the store for its lease before it goes on."""

_LEASE_BYTES = 1 << 16
"""A size that no lease reaches, although it may grow between two requests."""

_READS = 3
"""Number of reads of a damaged lease: the damage may have happened on the way."""

LIVE: set[str] = set()
"""The runs of this process that have a lease, or are taking one. Any other lease of this process was left by a failed run."""


class LeaseRecord(Struct, frozen=True):
    """A lease as it is stored.

    Attributes:
        fence: grows with each run that has it.
        run: random name of the run.
        beat: counts its renewals.
        is_free: true if its run gave it back.
        mark: of the run's process.
    """

    target: str
    fence: int
    run: str
    beat: int = 0
    is_free: bool = False
    mark: Mapping[str, Any] = field(default_factory=process_mark)

    def render(self) -> bytes:
        """The object's content."""
        document = {
            "format": FORMAT,
            "version": VERSION,
            "target": self.target,
            "fence": self.fence,
            "run": self.run,
        }
        document |= {"beat": self.beat, "is_free": self.is_free, **self.mark}
        return checked_line(json.dumps(document))

    @property
    def holder(self) -> str:
        """The process that has it, for messages."""
        return (
            f"process {self.mark.get('pid', 'unknown')} on {self.mark.get('host', 'another host')}"
        )


class Lease:
    """A lease that this run holds. Safe from any thread.

    Attributes:
        is_conditional: true if the store obeys conditions, so that no other run can have it.
    """

    def __init__(
        self,
        store: BucketStore,
        path: str,
        record: LeaseRecord,
        began_s: float,
        *,
        is_conditional: bool,
    ) -> None:
        self._store = store
        self._path = path
        self._record = record
        self._renewed = began_s
        self._lost = ""
        self._lock = threading.RLock()
        self.is_conditional = is_conditional
        self._known = self._known_if_ours(record.render())

    @property
    def fence(self) -> int:
        return self._record.fence

    def is_due(self) -> bool:
        """True if the time for a renewal has come."""
        return now_s() >= self._renewed + BEAT_S

    @property
    def is_lost(self) -> bool:
        """True if another run has it."""
        return bool(self._lost)

    def check(self) -> None:
        """Raises TargetBusyError if another run has it; asks the store if the last renewal is long ago."""
        # Against a run that was stopped, or cut off, until another one took its lease.
        if now_s() > self._renewed + SURE_S:
            self.renew()
        self._refuse_lost()

    def _refuse_lost(self) -> None:
        if self._lost:
            raise TargetBusyError(
                f"this run lost {self._record.target}: {self._lost}; nothing was published; wait for the other run to end, then run "
                "the same again"
            )

    def renew(self) -> None:
        """Renews the lease. Raises TargetBusyError if another run has it, StorageError for a failed request."""
        with self._lock:
            self._refuse_lost()
            began = now_s()  # not the time of the answer: the store may have renewed it long before
            self._put(beat=self._record.beat + 1)
            self._renewed = began

    def release(self) -> None:
        """Gives it back, so that the next run need not wait; a lease that another run has taken stays."""
        with self._lock, suppress(StorageError):
            self._put(beat=self._record.beat + 1, is_free=True)
        LIVE.discard(self._record.run)

    def remove(self) -> None:
        """Gives it back, and removes the object."""
        with suppress(StorageError):
            self.check()
            objects.delete(self._store, [self._path])
        LIVE.discard(self._record.run)

    def _put(self, beat: int, *, is_free: bool = False) -> None:
        record = LeaseRecord(
            self._record.target, self._record.fence, self._record.run, beat, is_free
        )
        if not self.is_conditional:
            objects.put(self._store, self._path, record.render())
        else:
            self._known = self._replaced(record)
        self._record = record

    def _replaced(self, record: LeaseRecord) -> objects.Known | None:
        """Replaces it; returns the new version. A lost answer does not matter if the lease is ours."""
        try:
            if self._known is None:
                raise SourceChangedError("the lease is gone")
            version = objects.replace(self._store, self._path, record.render(), self._known)
        except (SourceChangedError, MissingError):
            return self._known_if_ours(record.render())
        known = objects.known_version(self._store, self._path)
        # Its content has the run and the beat, so that no other lease has this ETag.
        if known is None or version_of(known.e_tag) != version:
            self._lose()
        return known

    def _known_if_ours(self, data: bytes) -> objects.Known | None:
        """The current version, if this run put it; a run that was stopped may find another run's lease."""
        known = objects.known_version(self._store, self._path)
        if known is None or read_content(self._store, self._path, version_of(known.e_tag)) != data:
            self._lose()
        return known

    def _lose(self) -> None:
        self._lost = f"another run took {self._store.text(self._path)}, or it was removed"
        self._refuse_lost()


def read_lease(store: BucketStore, path: str) -> LeaseRecord | None:
    """The lease at a path; None if there is none. A damaged lease has no run, and no mark of a process.

    Raises ResumeError for a lease of another version of this program.
    """
    data = read_content(store, path)
    if data is None:
        return None
    line = _first_valid(data)
    if not line:
        return LeaseRecord(target="", fence=0, run="", mark={})
    try:
        document = json.loads(line)
        is_known = (document.pop("format"), document.pop("version")) == (FORMAT, VERSION)
        names = ("target", "fence", "run", "beat", "is_free")
        record = LeaseRecord(**{name: document.pop(name) for name in names}, mark=document)
    except (ValueError, TypeError, KeyError, AttributeError):
        is_known = False
    if not is_known or type(record.fence) is not int:
        raise ResumeError(
            f"{store.text(path)} is no lease that this version of reshard knows; end the run that wrote it with that version, "
            "or remove the folder that it is in once nothing writes the target"
        )
    return record


def read_content(store: BucketStore, path: str, version: str = "") -> bytes | None:
    """The lease's content; None if there is none in that version."""
    data = b""
    for _ in range(_READS):
        try:
            data = store.open(path, version).read(0, _LEASE_BYTES)
        except (MissingError, SourceChangedError):
            return None
        if _first_valid(data):
            break
    return data


def _first_valid(data: bytes) -> bytes:
    """The text of a lease; empty if it is damaged."""
    return next(valid_lines(data), b"")


_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
"""A clock that continues while the machine sleeps, as the clocks of other machines do."""


def now_s() -> float:
    """Seconds since some point in the past."""
    return time.clock_gettime(_CLOCK)


DEAD_S = 30.0
"""Seconds without a renewal, after which a lease is dead."""

LOOK_S = 2.0
"""Seconds between looks at a lease, to find out if its run lives."""


def acquire_lease(store: BucketStore, path: str, target: str, *, unsafe: bool = False) -> Lease:
    """Takes the lease at ``path``, if it is free; waits until the lease of a vanished host is dead.

    Raises TargetBusyError naming the holder, and StorageError if the store ignores conditions, unless ``unsafe``.
    """
    record = LeaseRecord(target, _next_fence(0), secrets.token_hex(8))
    LIVE.add(record.run)
    try:
        return _acquire(store, path, record, unsafe=unsafe)
    except BaseException:
        LIVE.discard(record.run)
        raise


def _acquire(store: BucketStore, path: str, record: LeaseRecord, *, unsafe: bool) -> Lease:
    target, began_s = record.target, now_s()
    try:
        objects.put_new(store, path, record.render())
    except TargetExistsError:
        return _take_over(store, path, record)
    except NoConditionsError as error:
        if not unsafe:
            raise _refusal(target, str(error)) from None
        objects.put(store, path, record.render())
        return Lease(store, path, record, began_s, is_conditional=False)
    taken = _puts_acquire(store, path)
    # Against a run that found our lease dead before we were sure of it, took it and ended: ours again, with a later fence.
    if taken == 1 and (known := objects.known_version(store, path)) is not None:
        record, began_s = LeaseRecord(target, _next_fence(record.fence), record.run), now_s()
        objects.replace(store, path, record.render(), known)
    is_conditional = taken < 2
    if not is_conditional:
        if not unsafe:
            objects.delete(store, [path])
            raise _refusal(
                target, "it put an object in the place of one although it was asked not to"
            )
        objects.put(store, path, record.render())
    return Lease(store, path, record, began_s, is_conditional=is_conditional)


def _puts_acquire(store: BucketStore, path: str) -> int:
    """The number of objects that the store takes at a path, of two puts on condition that none is there.

    0 is usual. 1 shows that the lease was gone: another run took it over and ended. 2 show that the store ignores conditions.
    """
    for taken, data in enumerate((b"a second one", b"a third one")):
        try:
            objects.put_new(store, path, data)
        except TargetExistsError:
            return taken
    return 2


def _refusal(target: str, seen: str) -> StorageError:
    return StorageError(
        f"the store of {target} keeps no conditions on writing, by which a run is sure that no other one writes the same target "
        f"({seen}); choose another store, or see that nobody else writes there and say so (unsafe_commit)"
    )


def _next_fence(last: int) -> int:
    return max(last + 1, time.time_ns() // 1_000_000)  # against a clock that was set back


def _take_over(store: BucketStore, path: str, ours: LeaseRecord) -> Lease:
    """Takes an existing lease, once it is free or dead."""
    while True:
        known, record = objects.known_version(store, path), read_lease(store, path)
        if known is None or record is None:
            return _acquire(store, path, ours, unsafe=False)
        if not _can_be_acquire(store, path, known, record):
            _refuse_live(read_lease(store, path), record, ours.target)
            continue
        mine = LeaseRecord(ours.target, _next_fence(record.fence), ours.run)
        began_s = now_s()
        try:
            objects.replace(store, path, mine.render(), known)
        except (SourceChangedError, MissingError):
            # The answer of our own put may have been lost, and its repetition refused.
            if read_content(store, path) != mine.render():
                continue  # another run was faster
        return Lease(store, path, mine, began_s, is_conditional=True)


def _can_be_acquire(
    store: BucketStore, path: str, known: objects.Known, record: LeaseRecord
) -> bool:
    """True if a lease is free or dead; False once it changes, or at once if a run of this process has it."""
    state = process_state(record.mark)
    is_of_this_process = state == "runs" and record.mark.get("pid") == os.getpid()
    if record.is_free or state == "gone" or (is_of_this_process and record.run not in LIVE):
        return True
    until = now_s() + DEAD_S
    while not is_of_this_process and objects.known_version(store, path) == known:
        if now_s() >= until or process_state(record.mark) == "gone":
            return True
        time.sleep(LOOK_S)
    return False


def _refuse_live(now: LeaseRecord | None, before: LeaseRecord, target: str) -> None:
    """Raises TargetBusyError unless the run that had the lease has ended meanwhile."""
    if now is None or (now.is_free and now.run == before.run):
        return
    raise TargetBusyError(
        f"another run ({now.holder}) is writing {target} now; wait for it to end, or choose another target"
    )
