"""A lease: an object that says which run may write a target, renewed while that run lives.

::

    1c291ca3 {"format": "reshard.lease", "version": 1, "target": "gs://…", "fence": 1795521600000, "run": "9f…", "beat": 17,
              "is_free": false, "host": "…", "boot": "…", "namespace": "…", "pid": 4711, "started": 123456}

A checked line (``checked_lines``). A run takes the lease by putting it where there is none, or in place of the one that it has
seen to be free or dead, with a greater fence: the time in milliseconds, so that fences also grow where a finished run left no
lease to count from. Every renewal replaces the version that was put last, so that a run which lost its lease finds out.

A lease is dead when its process is gone, or when its version stays the same for ``take_lease.DEAD_S`` by the clock of the run that waits,
whether or not that process is still there: it may stand still, or have failed to give the lease back. So is one that is damaged:
the run that has it, if it lives, finds out at its next renewal that it has lost it.
"""

from __future__ import annotations

import json
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
)
from reshard.storage.buckets import objects
from reshard.storage.buckets.listing import version_of
from reshard.storage.buckets.store import BucketStore
from reshard.storage.checked_lines import checked_line, valid_lines
from reshard.storage.host import process_mark

FORMAT = "reshard.lease"
VERSION = 1

BEAT_S = 8.0
"""Between renewals."""

SURE_S = 20.0
"""A run that could not renew its lease for so long asks the store whether it still has it before it goes on."""

_LEASE_BYTES = 1 << 16
"""More than a lease ever has: it may grow between two requests."""

_READS = 3
"""A lease that is damaged is read so often: it may have happened on the way."""

LIVE: set[str] = set()
"""The runs of this process that have a lease, or are about to. What else names this process was not given back when its run failed."""


class Held(Struct, frozen=True):
    """A lease as it is stored.

    Attributes:
        fence: grows with each run that has it.
        run: random name of the run.
        beat: counts its renewals.
        is_free: whether its run gave it back.
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
        is_conditional: whether the store keeps conditions, so that nobody else can have it.
    """

    def __init__(
        self, store: BucketStore, path: str, held: Held, began_s: float, *, is_conditional: bool
    ) -> None:
        self._store = store
        self._path = path
        self._held = held
        self._renewed = began_s
        self._lost = ""
        self._lock = threading.RLock()
        self.is_conditional = is_conditional
        self._known = self._known_if_ours(held.render())

    @property
    def fence(self) -> int:
        return self._held.fence

    @property
    def mark(self) -> tuple[str, str]:
        """Its URL and the run that has it, by which tasks on other hosts see whether it still has it (``check_lease``)."""
        return self._store.text(self._path), self._held.run

    def is_due(self) -> bool:
        """Whether it is time to renew it."""
        return now_s() >= self._renewed + BEAT_S

    @property
    def is_lost(self) -> bool:
        """Whether another run has it."""
        return bool(self._lost)

    def check(self) -> None:
        """Raises TargetBusyError if another run has it; asks the store where the last renewal is long ago."""
        if now_s() > self._renewed + SURE_S:
            self.renew()
        self._refuse_lost()

    def _refuse_lost(self) -> None:
        if self._lost:
            raise TargetBusyError(
                f"this run lost {self._held.target}: {self._lost}; nothing was published; wait for the other run to end, then run "
                "the same again"
            )

    def renew(self) -> None:
        """Says that this run lives. Raises TargetBusyError if another run has the lease, StorageError for a failed request."""
        with self._lock:
            self._refuse_lost()
            began = now_s()
            self._put(beat=self._held.beat + 1)
            self._renewed = began

    def release(self) -> None:
        """Gives it back, so that the next run need not wait; what another run has by now stays its own."""
        with self._lock, suppress(StorageError):
            self._put(beat=self._held.beat + 1, is_free=True)
        LIVE.discard(self._held.run)

    def remove(self) -> None:
        """Gives it back, and leaves nothing."""
        with suppress(StorageError):
            self.check()
            objects.delete(self._store, [self._path])
        LIVE.discard(self._held.run)

    def _put(self, beat: int, *, is_free: bool = False) -> None:
        held = Held(self._held.target, self._held.fence, self._held.run, beat, is_free)
        if not self.is_conditional:
            objects.put(self._store, self._path, held.render())
        else:
            self._known = self._replaced(held)
        self._held = held

    def _replaced(self, held: Held) -> objects.Known | None:
        """Replaces it; the new version. An answer that was lost is no loss if the lease is ours all the same."""
        try:
            if self._known is None:
                raise SourceChangedError("the lease is gone")
            version = objects.replace(self._store, self._path, held.render(), self._known)
        except (SourceChangedError, MissingError):
            return self._known_if_ours(held.render())
        known = objects.known_version(self._store, self._path)
        # Its content has the run and the beat, so that no other lease has this ETag.
        if known is None or version_of(known.e_tag) != version:
            self._lose()
        return known

    def _known_if_ours(self, data: bytes) -> objects.Known | None:
        """The version that is there, if it is what this run put; a run that stood still may find another one's."""
        known = objects.known_version(self._store, self._path)
        if known is None or read_content(self._store, self._path, version_of(known.e_tag)) != data:
            self._lose()
        return known

    def _lose(self) -> None:
        self._lost = f"another run took {self._store.text(self._path)}, or it was removed"
        self._refuse_lost()


def read_lease(store: BucketStore, path: str) -> Held | None:
    """The lease at a path; None where there is none. One that is damaged is of no run, and has no mark of a process.

    Raises ResumeError for one of another version of this program.
    """
    data = read_content(store, path)
    if data is None:
        return None
    line = _first_valid(data)
    if not line:
        return Held(target="", fence=0, run="", mark={})
    try:
        document = json.loads(line)
        is_known = (document.pop("format"), document.pop("version")) == (FORMAT, VERSION)
        names = ("target", "fence", "run", "beat", "is_free")
        held = Held(**{name: document.pop(name) for name in names}, mark=document)
    except (ValueError, TypeError, KeyError, AttributeError):
        is_known = False
    if not is_known or type(held.fence) is not int:
        raise ResumeError(
            f"{store.text(path)} is no lease that this version of reshard knows; end the run that wrote it with that version, "
            "or remove the folder that it is in once nothing writes the target"
        )
    return held


def read_content(store: BucketStore, path: str, version: str = "") -> bytes | None:
    """The lease's content; None where there is none in that version."""
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
    """The text of a lease; nothing where it is damaged."""
    return next(valid_lines(data), b"")


_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
"""Goes on while the machine sleeps, as the clocks of other machines do."""


def now_s() -> float:
    """Seconds since some point in the past."""
    return time.clock_gettime(_CLOCK)
