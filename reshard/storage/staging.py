"""Staging: output grows in a folder that no reader takes for a checkpoint, and appears by one rename.

Beside ``DIR/name`` lies ``DIR/.name.reshard-partial`` with a lock file, a journal where the run can
be gone on with, and the folder that becomes the target. The lock dies with its holder, so what a
killed run left behind is taken over.
Publishing syncs everything with errors checked, then renames without ever replacing anything.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import shutil
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from reshard.errors import StorageError, TargetBusyError, TargetExistsError
from reshard.storage.local import close_after_reading, libc, storage_error, storage_errors
from reshard.storage.syncing import checked, fsync, sync_tree

_LOCK = "lock"
_PARTIAL = ".reshard-partial"
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
        identity: device and inode of ``root``, so that another folder in its place is noticed.
    """

    target: Path
    folder: Path
    root: Path
    identity: tuple[int, int] | None = None

    @property
    def journal(self) -> Path:
        """Where a run that can be gone on with records what is done."""
        return self.folder / "journal"

    @property
    def next_journal(self) -> Path:
        """The journal that is written anew, until it takes the other one's place."""
        return self.folder / "journal.new"


def staging_for(target: Path) -> Staging:
    """The staging folder of ``target``; nothing is made."""
    folder = target.parent / f".{target.name}{_PARTIAL}"
    return Staging(target, folder, folder / "checkpoint")


def staging_above(path: Path) -> Path | None:
    """The staging folder that a path is or lies in, if any."""
    whole = path.absolute()
    folders = (p for p in (whole, *whole.parents) if p.name.endswith(_PARTIAL))
    return next((p for p in folders if p.name.startswith(".")), None)


def check_target(target: Path, source: Path, *, overwrite: bool) -> None:
    """Refuses a target that exists (unless it may be overwritten) or that overlaps with the source.

    What may be overwritten is a folder: a file or a link is refused, since neither is a checkpoint.
    """
    real_target, real_source = _real(target), _real(source)
    if real_target == real_source:
        raise StorageError(
            f"the target {str(target)!r} is the source itself; choose another target"
        )
    if real_source in real_target.parents:
        raise StorageError(
            f"the target {str(target)!r} lies inside the source {str(source)!r}; choose a target outside of it"
        )
    if real_target in real_source.parents:
        raise StorageError(
            f"the source {str(source)!r} lies inside the target {str(target)!r}; choose another target"
        )
    check_new(target, overwrite=overwrite)


def check_apart(targets: Sequence[Path]) -> None:
    """Refuses targets of one run that are, or contain, one another."""
    real = [_real(target) for target in targets]
    for number, one in enumerate(real):
        for other in real[:number]:
            if one == other:
                raise StorageError(
                    f"the target {str(targets[number])!r} is given twice; give every target a folder of its own"
                )
            if one in other.parents or other in one.parents:
                inner, outer = (one, other) if other in one.parents else (other, one)
                raise StorageError(
                    f"the target {str(inner)!r} lies inside the target {str(outer)!r}; choose targets that do "
                    "not contain one another"
                )


def check_new(target: Path, *, overwrite: bool) -> None:
    """Refuses a target that exists, unless it is a folder and may be overwritten."""
    if os.path.lexists(target) and not overwrite:
        raise _target_exists(target)
    _refuse_no_folder(target)
    _refuse_file_above(target)


def _real(path: Path) -> Path:
    try:
        return path.resolve()
    except RuntimeError:  # how Python before 3.13 says it
        raise StorageError(
            f"{str(path)!r} leads through a symbolic link that leads to itself; remove the link"
        ) from None


def _refuse_no_folder(target: Path) -> None:
    with storage_errors("look at", target):
        try:
            mode = os.lstat(target).st_mode
        except FileNotFoundError:
            return
        except NotADirectoryError:
            return  # said better of the file above
    if not stat.S_ISDIR(mode):
        kind = "a symbolic link" if stat.S_ISLNK(mode) else "no folder"
        raise TargetExistsError(
            f"the target {str(target)!r} is {kind} and was left untouched; overwriting replaces only folders: "
            "remove it, or choose another target"
        )


def _refuse_file_above(target: Path) -> None:
    with storage_errors("look at", target):
        above = next((p for p in target.parents if os.path.lexists(p)), None)
        is_below_file = above is not None and not above.is_dir()
    if is_below_file:
        raise StorageError(
            f"the target {str(target)!r} lies below {str(above)!r}, which should be a folder but is none; choose "
            "another target"
        )


def _target_exists(target: Path) -> TargetExistsError:
    return TargetExistsError(
        f"the target {str(target)!r} exists already and was left untouched; choose another, or ask to overwrite it (overwrite)"
    )


@contextmanager
def staged(target: Path) -> Iterator[Staging]:
    """An empty staging folder, held alone; removed at the end, published or not.

    Raises TargetBusyError naming the holder where another live process holds it.
    """
    with held(target) as staging:
        try:
            yield emptied(staging)
        finally:
            dissolve(staging)


@contextmanager
def held(target: Path) -> Iterator[Staging]:
    """The staging folder as the last run left it, held alone; what is in it stays, at the end too.

    Raises StorageError naming the holder where another live process holds it.
    """
    staging = staging_for(target)
    _make_durable(target.parent)
    lock = _lock(staging)
    try:
        yield staging
    finally:
        # Not by closing alone: a child that was forked meanwhile has a part in the lock.
        fcntl.flock(lock, fcntl.LOCK_UN)
        close_after_reading(lock)


def emptied(staging: Staging) -> Staging:
    """A held staging folder without anything that an earlier run left.

    The journal goes first, and durably: after a power failure it must not speak of other files.
    """
    with storage_errors("remove", staging.journal):
        if os.path.lexists(staging.journal):
            _remove(staging.journal)
            fsync(staging.folder)
    with storage_errors("create", staging.root):
        _remove(staging.next_journal)
        _remove(staging.root)
        staging.root.mkdir()
    return identified(staging)


def identified(staging: Staging) -> Staging:
    """The staging folder with the identity of the root that is in it now."""
    with storage_errors("look at", staging.root):
        status = os.lstat(staging.root)
    return replace(staging, identity=(status.st_dev, status.st_ino))


def _make_durable(folder: Path) -> None:
    """Makes a folder and those above it that are missing, each recorded on the device in its parent."""
    with storage_errors("look at", folder):
        missing = [p for p in (folder, *folder.parents) if not p.exists()]
    for path in reversed(missing):
        with storage_errors("create", path):
            path.mkdir(exist_ok=True)
        fsync(path.parent)


def _remove(root: Path) -> None:
    """Removes what an earlier run left, be it a folder, or a file or link in its place."""
    if root.is_dir() and not root.is_symlink():
        shutil.rmtree(root)
    else:
        root.unlink(missing_ok=True)


def dissolve(staging: Staging) -> None:
    """Removes the staging folder, the lock last: who takes a new lock finds nothing still being removed."""
    for journal in (staging.journal, staging.next_journal):
        with suppress(OSError):
            _remove(journal)
    shutil.rmtree(staging.root, ignore_errors=True)
    with suppress(OSError):
        (staging.folder / _LOCK).unlink()
        staging.folder.rmdir()


def _lock(staging: Staging) -> int:
    """Takes the lock and writes our process id into it, for whoever is refused."""
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
            raise _held_by_another(fd, staging) from None
        except OSError as error:
            close_after_reading(fd)
            raise storage_error("lock", path, error) from error
        # The last holder removed the file between our open and our lock.
        close_after_reading(fd)


def _held_by_another(fd: int, staging: Staging) -> TargetBusyError:
    """The error that names who holds the lock, as far as that can be read; closes ``fd``."""
    try:
        holder = os.pread(fd, 32, 0).decode(errors="replace") or "unknown"
    except OSError:
        holder = "unknown"
    finally:
        close_after_reading(fd)
    return TargetBusyError(
        f"another run (process {holder}) is writing {str(staging.target)!r} now; wait for it to end, "
        "or choose another target"
    )


def _open_lock(path: Path) -> int | None:
    """A descriptor of the lock file, made if missing; None where its folder was just removed."""
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


def publish(
    staging: Staging, *, overwrite: bool, check: Callable[[Path], None] | None = None
) -> None:
    """Syncs and renames the staged folder to the target, in one step that replaces nothing.

    With ``overwrite`` an existing target changes places with the staged folder, and the old one is
    removed afterwards: at every moment one of the two is there, whole. ``check`` raises where what is
    there must not be replaced: it may have appeared since the run began.
    """
    sync_tree(staging.root)
    _refuse_replaced(staging)
    with storage_errors("publish", staging.target):
        if overwrite and os.path.lexists(staging.target):
            _refuse_no_folder(staging.target)
            if check is not None:
                check(staging.target)
            _exchange(staging)
        else:
            _rename_new(staging)
    _sync_published(staging.target)


def _refuse_replaced(staging: Staging) -> None:
    """Someone may have removed the folder, and a writer made a new, incomplete one in its place."""
    with storage_errors("publish", staging.target):
        status = os.lstat(staging.root)
    if staging.identity not in (None, (status.st_dev, status.st_ino)):
        raise StorageError(
            f"the staging folder {str(staging.root)!r} was removed while it was written; nothing was published at "
            f"{str(staging.target)!r}; leave that folder alone and run again"
        )


def _sync_published(target: Path) -> None:
    try:
        fsync(target.parent)
    except StorageError as error:
        raise StorageError(
            f"{str(target)!r} is published and whole, but may be gone after a power failure: {error}"
        ) from error


def _exchange(staging: Staging) -> None:
    try:
        _rename(staging.root, staging.target, _RENAME_EXCHANGE)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOSYS):
            raise
        raise StorageError(
            f"the file system of {str(staging.target)!r} cannot exchange two folders in one step, so what is there "
            "was left untouched; remove it and run again without overwriting, or choose another target"
        ) from error


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
    try:
        staging.root.rename(staging.target)
    except OSError as error:
        if error.errno in (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR):
            raise _target_exists(staging.target) from error
        raise


def _rename(source: Path, target: Path, flags: int) -> None:
    places = (_AT_FDCWD, os.fsencode(source), _AT_FDCWD, os.fsencode(target))
    checked(lambda: libc().renameat2(*places, ctypes.c_uint(flags)), target)
