"""Forked processes: the threads of a library are not in them, so that its calls would hang, or end the process."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from reshard.errors import StorageError


def forked_error(action: str, used: str, follows: str) -> StorageError:
    """The error for a call of a library in a process that was forked after the library was used, to be raised."""
    return StorageError(
        f"cannot {action}: this process was forked from one that had used {used}, and {follows}; start worker processes with "
        "'spawn' (ProcessPoolExecutor(mp_context=multiprocessing.get_context('spawn')))"
    )


def thread_names() -> set[str]:
    """The names of this process's threads, those of libraries too; none where the system does not tell."""
    names: set[str] = set()
    with suppress(OSError):
        for thread in Path("/proc/self/task").iterdir():
            with suppress(OSError):  # it ended meanwhile
                names.add((thread / "comm").read_text().strip())
    return names
