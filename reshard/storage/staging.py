"""Staging: output grows in a folder that no reader takes for a checkpoint, and appears by one rename.

Beside ``DIR/name`` lies ``DIR/.name.reshard-partial`` with a lock file and, inside, the folder that
becomes the target. The lock dies with its holder, so what a killed run left behind is taken over.
Publishing syncs everything with errors checked, then renames without ever replacing anything.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from reshard.errors import StorageError, TargetExistsError
from reshard.storage.local import storage_error, storage_errors

FSYNC_FILES = 256
"""Up to here files are synced one by one; beyond, the whole file system at once is quicker."""

_AT_FDCWD = -100
_RENAME_NOREPLACE = 1
_RENAME_EXCHANGE = 2


@dataclass(frozen=True, slots=True)
class Staging:
    """Where a run writes.

    Attributes:
        target: the folder that will appear.
        folder: the hidden folder beside it.
        root: the folder in it that is renamed to the target.
    """

    target: Path
    folder: Path
    root: Path


def staging_for(target: Path) -> Staging:
    """The staging folder of ``target``; nothing is made."""
    folder = target.parent / f".{target.name}.reshard-partial"
    return Staging(target, folder, folder / "checkpoint")


def check_target(target: Path, source: Path, *, overwrite: bool) -> None:
    """Refuses a target that exists (unless it may be overwritten) or that overlaps with the source."""
    real_target, real_source = target.resolve(), source.resolve()
    if real_target == real_source or real_source in real_target.parents:
        raise StorageError(
            f"the target {str(target)!r} lies inside the source {str(source)!r}; choose a target outside of it"
        )
    if real_target in real_source.parents:
        raise StorageError(
            f"the source {str(source)!r} lies inside the target {str(target)!r}; choose another target"
        )
    if os.path.lexists(target) and not overwrite:
        raise _target_exists(target)


def _target_exists(target: Path) -> TargetExistsError:
    return TargetExistsError(
        f"the target {str(target)!r} exists already and was left untouched; choose another, or pass --overwrite"
    )


@contextmanager
def staged(target: Path) -> Iterator[Staging]:
    """An empty staging folder, held alone; removed at the end, published or not.

    Raises StorageError naming the holder where another live process holds it.
    """
    staging = staging_for(target)
    with storage_errors("create", target.parent):
        target.parent.mkdir(parents=True, exist_ok=True)
    lock = _lock(staging)
    try:
        with storage_errors("create", staging.root):
            if staging.root.exists():
                shutil.rmtree(staging.root)
            staging.root.mkdir()
        yield staging
    finally:
        shutil.rmtree(staging.folder, ignore_errors=True)
        os.close(lock)


def _lock(staging: Staging) -> int:
    """Takes the lock and writes our process id into it, for whoever is refused."""
    path = staging.folder / "lock"
    while True:
        with storage_errors("create", path):
            staging.folder.mkdir(exist_ok=True)
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is_same_file(fd, path):
                os.ftruncate(fd, 0)
                os.pwrite(fd, str(os.getpid()).encode(), 0)
                return fd
            # The last holder removed the file between our open and our lock.
            os.close(fd)
        except OSError as error:
            holder = os.pread(fd, 32, 0).decode(errors="replace") or "unknown"
            os.close(fd)
            if error.errno != errno.EWOULDBLOCK:
                raise storage_error("lock", path, error) from error
            raise StorageError(
                f"another run (process {holder}) is writing {str(staging.target)!r} now; wait for it to end, "
                "or choose another target"
            ) from None


def _is_same_file(fd: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(fd), path.stat())
    except FileNotFoundError:
        return False


def sync_tree(root: Path) -> None:
    """Makes everything below ``root`` durable, folders too; raises StorageError where that fails."""
    files = [Path(folder, name) for folder, _, names in os.walk(root) for name in names]
    if len(files) > FSYNC_FILES:
        _sync_file_system(root)
        return
    for path in (*files, *(Path(folder) for folder, _, _ in os.walk(root))):
        _fsync(path)


def forget_cached(root: Path) -> None:
    """Asks the kernel to drop what it caches of the (synced) files, so that reading reaches the device."""
    for folder, _, names in os.walk(root):
        for name in names:
            with storage_errors("read", Path(folder, name)):
                fd = os.open(Path(folder, name), os.O_RDONLY | os.O_CLOEXEC)
                try:
                    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
                finally:
                    os.close(fd)


def _fsync(path: Path) -> None:
    with storage_errors("sync", path):
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


def _sync_file_system(root: Path) -> None:
    with storage_errors("sync", root):
        fd = os.open(root, os.O_RDONLY | os.O_CLOEXEC)
        try:
            _checked(_libc().syncfs(fd))
        finally:
            os.close(fd)


def publish(staging: Staging, *, overwrite: bool) -> None:
    """Syncs and renames the staged folder to the target, in one step that replaces nothing.

    With ``overwrite`` an existing target changes places with the staged folder, and the old one is
    removed afterwards: at every moment one of the two is there, whole.
    """
    sync_tree(staging.root)
    with storage_errors("publish", staging.target):
        if overwrite and os.path.lexists(staging.target):
            _rename(staging.root, staging.target, _RENAME_EXCHANGE)
        else:
            _rename_new(staging)
    _fsync(staging.target.parent)


def _rename_new(staging: Staging) -> None:
    try:
        _rename(staging.root, staging.target, _RENAME_NOREPLACE)
    except OSError as error:
        if error.errno == errno.EEXIST:
            raise _target_exists(staging.target) from error
        if error.errno not in (errno.EINVAL, errno.ENOSYS):
            raise
        _rename_checked(staging)


def _rename_checked(staging: Staging) -> None:
    """For file systems without a rename that replaces nothing: only an empty folder could be lost."""
    if os.path.lexists(staging.target):
        raise _target_exists(staging.target)
    staging.root.rename(staging.target)


def _rename(source: Path, target: Path, flags: int) -> None:
    result = _libc().renameat2(
        _AT_FDCWD, os.fsencode(source), _AT_FDCWD, os.fsencode(target), ctypes.c_uint(flags)
    )
    _checked(result, target)


def _checked(result: int, path: Path | None = None) -> None:
    if result != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), str(path) if path else None)


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)
