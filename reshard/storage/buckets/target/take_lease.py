"""Takes the lease of a target, if it is free, or from a run that gave it back or is dead.

On the way it tests that the store obeys conditions, which let only one run have the lease.
"""

from __future__ import annotations

import os
import secrets
import time

from reshard.errors import (
    MissingError,
    SourceChangedError,
    StorageError,
    TargetBusyError,
    TargetExistsError,
)
from reshard.storage.buckets import objects
from reshard.storage.buckets.reasons import NoConditionsError
from reshard.storage.buckets.store import BucketStore
from reshard.storage.buckets.target.lease import LIVE, Held, Lease, now_s, read_content, read_lease
from reshard.storage.host import process_state

DEAD_S = 30.0
"""Seconds without a renewal, after which a lease is dead."""

LOOK_S = 2.0
"""Seconds between looks at a lease, to find out if its run lives."""


def take(store: BucketStore, path: str, target: str, *, unsafe: bool = False) -> Lease:
    """Takes the lease at ``path``, if it is free; waits until the lease of a vanished host is dead.

    Raises TargetBusyError naming the holder, and StorageError if the store ignores conditions, unless ``unsafe``.
    """
    held = Held(target, _next_fence(0), secrets.token_hex(8))
    LIVE.add(held.run)
    try:
        return _taken(store, path, held, unsafe=unsafe)
    except BaseException:
        LIVE.discard(held.run)
        raise


def _taken(store: BucketStore, path: str, held: Held, *, unsafe: bool) -> Lease:
    target, began_s = held.target, now_s()
    try:
        objects.put_new(store, path, held.render())
    except TargetExistsError:
        return _taken_over(store, path, held)
    except NoConditionsError as error:
        if not unsafe:
            raise _refusal(target, str(error)) from None
        objects.put(store, path, held.render())
        return Lease(store, path, held, began_s, is_conditional=False)
    taken = _puts_taken(store, path)
    if taken == 1 and (known := objects.known_version(store, path)) is not None:
        held, began_s = Held(target, _next_fence(held.fence), held.run), now_s()
        objects.replace(store, path, held.render(), known)
    is_conditional = taken < 2
    if not is_conditional:
        if not unsafe:
            objects.delete(store, [path])
            raise _refusal(
                target, "it put an object in the place of one although it was asked not to"
            )
        objects.put(store, path, held.render())
    return Lease(store, path, held, began_s, is_conditional=is_conditional)


def _puts_taken(store: BucketStore, path: str) -> int:
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
    return max(last + 1, time.time_ns() // 1_000_000)


def _taken_over(store: BucketStore, path: str, ours: Held) -> Lease:
    """Takes an existing lease, once it is free or dead."""
    while True:
        known, held = objects.known_version(store, path), read_lease(store, path)
        if known is None or held is None:
            return _taken(store, path, ours, unsafe=False)
        if not _can_be_taken(store, path, known, held):
            _refuse_live(read_lease(store, path), held, ours.target)
            continue
        mine = Held(ours.target, _next_fence(held.fence), ours.run)
        began_s = now_s()
        try:
            objects.replace(store, path, mine.render(), known)
        except (SourceChangedError, MissingError):
            if read_content(store, path) != mine.render():
                continue  # another run was faster
        return Lease(store, path, mine, began_s, is_conditional=True)


def _can_be_taken(store: BucketStore, path: str, known: objects.Known, held: Held) -> bool:
    """True if a lease is free or dead; False once it changes, or at once if a run of this process has it."""
    state = process_state(held.mark)
    is_of_this_process = state == "runs" and held.mark.get("pid") == os.getpid()
    if held.is_free or state == "gone" or (is_of_this_process and held.run not in LIVE):
        return True
    until = now_s() + DEAD_S
    while not is_of_this_process and objects.known_version(store, path) == known:
        if now_s() >= until:
            return True
        time.sleep(LOOK_S)
    return False


def _refuse_live(now: Held | None, before: Held, target: str) -> None:
    """Raises TargetBusyError unless the run that had the lease has ended meanwhile."""
    if now is None or (now.is_free and now.run == before.run):
        return
    raise TargetBusyError(
        f"another run ({now.holder}) is writing {target} now; wait for it to end, or choose another target"
    )
