"""Attempts: tasks in other processes write files of their own. They become the target's files only if their result counts.

``.name.reshard-partial/attempts-5f0c…`` has a folder for each execution of a batch of tasks. When its result
arrives, the run moves the files below the root of the target, each by one rename. So only the run itself writes below
the root: a task that was abandoned, or executed twice, changes none of its files. When the run ends, or another one takes the
target over, the folder is renamed and removed. A task that still writes then finds no folder, and makes none.
"""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path

from reshard.errors import StorageError
from reshard.storage.host import host_name
from reshard.storage.local.files import make_parents, storage_errors, write_all
from reshard.storage.local.syncing import fsync, sync_tree

PREFIX = "attempts-"
_DEAD = "dead-"


def attempts_in(folder: Path) -> Path:
    """The path of a folder for attempts of a new run, below its staging folder; it is not made."""
    return folder / f"{PREFIX}{secrets.token_hex(8)}"


def open_attempts(attempts: Path) -> None:
    """Makes the folder, and ends the attempts of earlier runs."""
    end_attempts(attempts.parent)
    with storage_errors("create", attempts):
        attempts.mkdir()
    fsync(attempts.parent)


def end_attempts(staging: Path) -> None:
    """Ends all attempts to write to a target: a task that still runs can no longer make a file.

    The folder is renamed first: while a folder is emptied under its name, a task could make a file in it.
    """
    for path in _below(staging):
        if path.name.startswith(PREFIX):
            dead = path.with_name(f"{_DEAD}{path.name}")
            with storage_errors("remove", path):
                path.rename(dead)
            path = dead
        if path.name.startswith(_DEAD):
            with suppress(OSError):  # rmtree raises some errors despite ignore_errors
                shutil.rmtree(path, ignore_errors=True)


def _below(folder: Path) -> list[Path]:
    with storage_errors("list", folder):
        try:
            return list(folder.iterdir())
        except FileNotFoundError:
            return []


def begin_attempt(attempts: str) -> str:
    """Makes a folder for one attempt; returns its name. StorageError if the folder of all attempts is not there."""
    name = secrets.token_hex(8)
    path = f"{attempts}/{name}"
    try:
        os.mkdir(path)  # noqa: PTH102 - once for each batch, without making what is above it
    except FileNotFoundError as error:
        raise StorageError(
            f"host {host_name()!r} does not see {attempts!r}: either it does not share the file system of the target, or the run that "
            "began this task is over; leave that folder alone, give only executors whose workers share this file system, and run again"
        ) from error
    except OSError as error:
        with storage_errors("create", path):
            raise error
    return name


def has_attempt(attempts: str, name: str) -> bool:
    """True if the folder of an attempt exists, perhaps made by another host."""
    return Path(attempts, name).is_dir()


def sync_attempt(folder: str) -> None:
    """Makes the files of an attempt and their folders durable."""
    sync_tree(Path(folder))


def accept(
    attempts: str,
    name: str,
    root: str,
    files: Iterable[str],
    heads: Mapping[str, tuple[bytes, int]],
    *,
    may_be_moved: bool = False,
) -> None:
    """Moves the files of an attempt below ``root``; each replaces an existing file.

    ``may_be_moved``: accepts files that were moved before, and are at their place and no longer in the attempt. ``heads`` has, for each
    file that chunks share, the first bytes, which no task writes, and the size.
    """
    for file in files:
        source, target = f"{attempts}/{name}/{file}", f"{root}/{file}"
        if file in heads:
            _complete(source, *heads[file])
        with storage_errors("move", target):
            try:
                os.rename(source, target)  # noqa: PTH104 - once for each chunk
            except FileNotFoundError:
                if not os.path.lexists(source):
                    if may_be_moved and os.path.lexists(target):
                        continue
                    raise
                make_parents(target, root)
                os.rename(source, target)  # noqa: PTH104  once for each chunk


def _complete(path: str, head: bytes, nbytes: int) -> None:
    with storage_errors("write", path):
        fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            write_all(fd, memoryview(head), 0, path)
            os.ftruncate(fd, nbytes)
        finally:
            os.close(fd)
