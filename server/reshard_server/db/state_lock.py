"""The lock of a state folder: with SQLite only one server at a time uses and migrates the records."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from reshard.errors import StorageError
from reshard_server.settings import Settings

LOCK_NAME = "server.lock"


@contextmanager
def state_locked(settings: Settings) -> Iterator[None]:
    """Makes the state folder if needed, and locks it; with PostgreSQL replicas share it without a lock.

    Raises StorageError if another server has locked it.
    """
    settings.state.mkdir(0o700, parents=True, exist_ok=True)  # only this user may see the records
    if settings.database_url is not None:
        yield
        return
    lock = _lock(settings.state)
    try:
        yield
    finally:
        os.close(lock)


def _lock(state: Path) -> int:
    lock = os.open(state / LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        holder = os.pread(lock, 32, 0).decode(errors="replace") or "unknown"
        os.close(lock)
        raise StorageError(
            f"another server (process {holder}) works on the state folder {str(state)!r}; end it, give this one its own "
            "folder (--state), or let both share a Postgres (database_url)"
        ) from None
    os.ftruncate(lock, 0)
    os.pwrite(lock, str(os.getpid()).encode(), 0)
    return lock
