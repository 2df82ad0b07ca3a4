"""Attempts: tasks that run elsewhere write files of their own, which become the target's only if their result counts.

``.name.reshard-partial/attempts-5f0c…`` has a folder for each time that a batch of tasks is carried out. When its result
arrives, the run moves the files below the root of the target, each by one rename. So nobody but the run itself writes below
the root: a task that was given up, or carried out twice, changes none of its files. When the run ends, or another one takes the
target over, the folder gets another name and is removed. What still writes then finds no folder, and makes none.
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
    """A folder of attempts of a new run, below its staging folder; nothing is made."""
    return folder / f"{PREFIX}{secrets.token_hex(8)}"


def open_attempts(attempts: Path) -> None:
    """Makes the folder, and ends the attempts of earlier runs."""
    end_attempts(attempts.parent)
    with storage_errors("create", attempts):
        attempts.mkdir()
    fsync(attempts.parent)


def end_attempts(staging: Path) -> None:
    """Ends all attempts to write to a target: a task that still runs cannot make a file any more.

    The folder is renamed first: in one that is only emptied, a file could be made meanwhile.
    """
    for path in _below(staging):
        if path.name.startswith(PREFIX):
            dead = path.with_name(f"{_DEAD}{path.name}")
            with storage_errors("remove", path):
                path.rename(dead)
            path = dead
        if path.name.startswith(_DEAD):
            with suppress(
                OSError
            ):  # some errors of rmtree are raised although it should ignore them
                shutil.rmtree(path, ignore_errors=True)


def _below(folder: Path) -> list[Path]:
    with storage_errors("list", folder):
        try:
            return list(folder.iterdir())
        except FileNotFoundError:
            return []


def begin_attempt(attempts: str) -> str:
    """Makes a folder for one attempt; its name. StorageError where the folder of all attempts is not there."""
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
    """Whether an attempt that was made, perhaps on another host, is there."""
    return Path(attempts, name).is_dir()


def sync_attempt(folder: str) -> None:
    """Makes the files of an attempt durable, and the folders that they are in."""
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
    """Moves the files of an attempt below ``root``, each in place of what may be there.

    ``may_be_moved``: one that is at its place and not in the attempt any more was moved before. ``heads`` has the first bytes, which no task
    writes, and the size of each file that chunks share.
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
