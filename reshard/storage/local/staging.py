"""Staging: output is written to a folder that no reader mistakes for a checkpoint, locked by one process.

``DIR/.name.reshard-partial`` beside ``DIR/name`` has a lock file, a journal if the run can be resumed, and the
folder or file that becomes the target (``publishing``). The lock ends with its process, so a later run takes over the
folder of a killed one.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from reshard.errors import TargetBusyError
from reshard.storage.local.files import (
    close_after_reading,
    make_parents,
    storage_error,
    storage_errors,
    write_all,
)
from reshard.storage.local.syncing import fsync

_LOCK = "lock"
PARTIAL = ".reshard-partial"

STAGED_PREFIX = "prefix"
"""The beginning of the names of staged files, if several become the target; the target's name replaces it."""

FILES_OF_PREFIX = f"{STAGED_PREFIX}.*"
"""The value of ``Staging.file`` if several files become the target."""

_HOLDER_SECONDS = 10.0
"""The longest time, on a busy machine, between taking a lock and writing the holder into it."""


class Staging(Struct, frozen=True):
    """The paths that a run writes to.

    Attributes:
        target: the folder or file that will appear.
        folder: the hidden folder beside it.
        root: the folder in it below which everything is written.
        file: name of the file in ``root`` that becomes the target; "" if ``root`` itself does, ``FILES_OF_PREFIX`` if all
            files in it do (``prefix_files``).
        stamp: device and inode of the future target, to notice that something else has replaced it.
    """

    target: Path
    folder: Path
    root: Path
    file: str = ""
    stamp: tuple[int, int] | None = None

    @property
    def is_prefix(self) -> bool:
        """True if several files become the target."""
        return self.file == FILES_OF_PREFIX

    @property
    def published(self) -> Path:
        """The folder or file that is renamed to the target; or the folder of several files, each with its own final name."""
        return self.root / self.file if self.file and not self.is_prefix else self.root

    @property
    def journal(self) -> Path:
        """The journal of a run that can be resumed."""
        return self.folder / "journal"

    @property
    def next_journal(self) -> Path:
        """A rewritten journal, before it replaces the journal."""
        return self.folder / "journal.new"


def staging_for(target: Path, file: str = "") -> Staging:
    """The staging paths of ``target``, a folder unless ``file`` names the file; nothing is made."""
    folder = target.parent / f".{target.name}{PARTIAL}"
    return Staging(target, folder, folder / "checkpoint", file)


def staging_above(path: Path) -> Path | None:
    """The staging folder at or above a path; None if there is none."""
    whole = path.absolute()
    folders = (p for p in (whole, *whole.parents) if p.name.endswith(PARTIAL))
    return next((p for p in folders if p.name.startswith(".")), None)


@contextmanager
def staged(target: Path) -> Iterator[Staging]:
    """An empty staging folder, held alone; removed at the end, published or not.

    Raises TargetBusyError, naming the holder, if another live process holds it.
    """
    with lock_staging(target) as staging:
        try:
            yield emptied(staging)
        finally:
            dissolve(staging)


@contextmanager
def lock_staging(target: Path, file: str = "") -> Iterator[Staging]:
    """The locked staging folder as the last run left it; its content stays, also at the end.

    Raises StorageError, naming the holder, if another live process holds it.
    """
    make_folders(target.parent)
    with locked(staging_for(target, file)) as staging:
        yield staging


@contextmanager
def locked(staging: Staging) -> Iterator[Staging]:
    """The staging folder, which no other process has in the block; its parent folder must exist."""
    lock = _lock(staging)
    try:
        yield staging
    finally:
        # Closing alone is not enough: a child that was forked meanwhile shares the lock.
        fcntl.flock(lock, fcntl.LOCK_UN)
        close_after_reading(lock)


def emptied(staging: Staging) -> Staging:
    """Empties a locked staging folder of everything that an earlier run left.

    The journal is removed first, and durably: after a power failure it must not describe newer files.
    """
    with storage_errors("remove", staging.journal):
        if os.path.lexists(staging.journal):
            _remove(staging.journal)
            fsync(staging.folder)  # against a power failure that brings it back beside newer files
    with storage_errors("create", staging.root):
        _remove(staging.next_journal)
        _remove(staging.root)
        staging.root.mkdir()
        if staging.published != staging.root:
            staging.published.touch()
    return stamped(staging)


def stamped(staging: Staging) -> Staging:
    """The staging folder with the stamp of the future target that is in it now."""
    with storage_errors("look at", staging.published):
        status = os.lstat(staging.published)
    return replace(staging, stamp=(status.st_dev, status.st_ino))


def make_folders(folder: Path) -> None:
    """Makes a folder and missing folders above it, each recorded on the device in its parent."""
    with storage_errors("look at", folder):
        missing = [p for p in (folder, *folder.parents) if not p.exists()]
    for path in reversed(missing):
        with storage_errors("create", path):
            path.mkdir(exist_ok=True)
        fsync(path.parent)


def _remove(root: Path) -> None:
    """Removes a folder that an earlier run left, or a file or link in its place."""
    if root.is_dir() and not root.is_symlink():
        shutil.rmtree(root)
    else:
        root.unlink(missing_ok=True)


def dissolve(staging: Staging) -> None:
    """Removes the staging folder, the lock last: a process that takes a new lock finds it empty."""
    # The journal first: after a crash here it must not name files that are gone.
    for journal in (staging.journal, staging.next_journal):
        with suppress(OSError):
            _remove(journal)
    with suppress(OSError):  # rmtree raises some errors despite ignore_errors
        shutil.rmtree(staging.root, ignore_errors=True)
    # The lock last, against a process that takes it between two of these removals.
    with suppress(OSError):
        (staging.folder / _LOCK).unlink()
        staging.folder.rmdir()


def _lock(staging: Staging) -> int:
    """Takes the lock and writes our process id into it, for the errors of refused processes."""
    path = staging.folder / _LOCK
    while True:
        fd = _open_lock(path)
        if fd is None:
            continue
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is_same_file(fd, path):
                os.ftruncate(fd, 0)
                os.pwrite(fd, str(os.getpid()).encode(), 0)
                return fd
        except BlockingIOError:
            raise _busy(fd, staging) from None
        except OSError as error:
            close_after_reading(fd)
            raise storage_error("lock", path, error) from error
        # The last holder removed the file between our open and our lock.
        close_after_reading(fd)


def _busy(fd: int, staging: Staging) -> TargetBusyError:
    """The error that names the lock's holder, if it can be read; closes ``fd``."""
    try:
        holder = _holder(fd) or "unknown"
    except OSError:
        holder = "unknown"
    finally:
        close_after_reading(fd)
    return TargetBusyError(
        f"another run (process {holder}) is writing {str(staging.target)!r} now; wait for it to end, "
        "or choose another target"
    )


def _holder(fd: int) -> str:
    """The text of the lock's holder; waits a moment for it, since the lock may have just been taken."""
    deadline = time.monotonic() + _HOLDER_SECONDS
    while not (written := os.pread(fd, 32, 0)) and time.monotonic() < deadline:
        time.sleep(0.01)
    return written.decode(errors="replace")


def _open_lock(path: Path) -> int | None:
    """A descriptor of the lock file, made if missing; None if its folder was just removed."""
    # O_NOFOLLOW: against a link to a file of this user, which would be emptied.
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    with storage_errors("create", path):
        path.parent.mkdir(exist_ok=True)
        try:
            return os.open(path, flags, 0o666)
        except FileNotFoundError:
            return None


def _is_same_file(fd: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(fd), path.stat())
    except FileNotFoundError:
        return False


def take_files(
    source: str, root: str, files: Iterable[str], heads: Mapping[str, tuple[bytes, int]]
) -> None:
    """Moves files from one folder to another, each by one rename; files that were moved before stay.

    ``heads`` has, for each file that chunks share, the first bytes, which no task writes, and the size.
    """
    for file in files:
        path, target = f"{source}/{file}", f"{root}/{file}"
        # Against a crash between a move and the record of it: the move is repeated.
        if not os.path.lexists(path) and os.path.lexists(target):
            continue
        if file in heads:
            _complete(path, *heads[file])
        with storage_errors("move", target):
            try:
                os.rename(path, target)  # noqa: PTH104 - once for each chunk
            except FileNotFoundError:
                make_parents(target, root)
                os.rename(path, target)  # noqa: PTH104  once for each chunk


def _complete(path: str, head: bytes, nbytes: int) -> None:
    with storage_errors("write", path):
        fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            write_all(fd, memoryview(head), 0, path)
            os.ftruncate(fd, nbytes)
        finally:
            os.close(fd)
