"""Asks from another process, perhaps on another host, whether a run still has a lease."""

from __future__ import annotations

from reshard.errors import TargetBusyError
from reshard.storage.buckets.store import BucketStore
from reshard.storage.buckets.target.lease import BEAT_S, now_s, read_lease

_SEEN: dict[tuple[str, str], float] = {}
"""When this process last saw that a run has a lease."""


def check_held(store: BucketStore, path: str, run: str) -> None:
    """Raises TargetBusyError unless a run has the lease; asks the store where the last answer is ``BEAT_S`` old.

    For tasks on other hosts, whose run may be over.
    """
    asked_s, mark = now_s(), (store.text(path), run)
    if asked_s < _SEEN.get(mark, -BEAT_S) + BEAT_S:
        return
    held = read_lease(store, path)
    if held is None or held.run != run or held.is_free:
        raise TargetBusyError(
            f"the run that began this task is over: it has {mark[0]} no longer; nothing was written"
        )
    _SEEN.clear()
    _SEEN[mark] = asked_s
