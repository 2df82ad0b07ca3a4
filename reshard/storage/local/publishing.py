"""Publishing: one rename makes the staged folder or file the target; it replaces at most an empty folder.

Everything is synced before the rename, with errors checked, and the parent folder of the target after it.
"""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Callable, Sequence
from pathlib import Path

from reshard.errors import StorageError
from reshard.storage.local.files import libc, storage_errors
from reshard.storage.local.latest_prefix import name_latest
from reshard.storage.local.prefix_files import link_files
from reshard.storage.local.staging import Staging
from reshard.storage.local.store import LOCAL
from reshard.storage.local.syncing import checked, fsync, sync_tree
from reshard.storage.local.target_checks import is_empty_folder, refuse_other_kind, target_exists
from reshard.storage.location import Location

_AT_FDCWD = -100
_RENAME_NOREPLACE = 1
_RENAME_EXCHANGE = 2


def publish(
    staging: Staging,
    *,
    overwrite: bool,
    check: Callable[[Location], None] | None = None,
    last: Sequence[str] = (),
) -> None:
    """Syncs the staged output and renames it to the target, in one step that replaces at most an empty folder.

    With ``overwrite`` an existing target is exchanged with the staged one, and the old one is removed
    afterwards: at every moment one of the two is complete. ``check`` raises if the existing target must not be
    replaced: it may have appeared since the run began. ``last``: the index files, of several files.
    """
    sync_tree(staging.root)
    _refuse_replaced(staging)
    with storage_errors("publish", staging.target):
        if staging.is_prefix:
            link_files(staging, last)
        elif overwrite and os.path.lexists(staging.target):
            refuse_other_kind(staging.target, is_file=bool(staging.file))
            if check is not None:
                check(Location(LOCAL, str(staging.target)))
            _exchange(staging)
        else:
            _rename_new(staging)
    finish_published(staging)


def finish_published(staging: Staging) -> None:
    """Makes the name of a published target durable. For several files, TensorFlow's file of the latest prefix then names it."""
    _naming(staging, "may be lost in a power failure", lambda: fsync(staging.target.parent))
    if staging.is_prefix:
        _naming(staging, "TensorFlow does not find it as the latest", lambda: name_latest(staging))


def _naming(staging: Staging, otherwise: str, act: Callable[[], None]) -> None:
    try:
        act()
    except StorageError as error:
        raise StorageError(
            f"{str(staging.target)!r} is published and complete, but {otherwise}: {error}"
        ) from error


def _refuse_replaced(staging: Staging) -> None:
    """Checks the stamp of the folder: an incomplete folder may have replaced it."""
    with storage_errors("publish", staging.target):
        status = os.lstat(staging.published)
    if staging.stamp not in (None, (status.st_dev, status.st_ino)):
        raise StorageError(
            f"the staging folder {str(staging.root)!r} was removed while it was written; nothing was published at "
            f"{str(staging.target)!r}; leave that folder alone and run again"
        )


def _exchange(staging: Staging) -> None:
    try:
        _rename(staging.published, staging.target, _RENAME_EXCHANGE)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOSYS):
            raise
        raise StorageError(
            f"the file system of {str(staging.target)!r} cannot exchange two names in one step, so the "
            "existing target was left untouched; remove it and run again without overwriting, or choose another target"
        ) from error


def _rename_new(staging: Staging) -> None:
    try:
        _rename(staging.published, staging.target, _RENAME_NOREPLACE)
    except OSError as error:
        if error.errno not in (errno.EEXIST, errno.EINVAL, errno.ENOSYS):
            raise
        _rename_checked(staging)


def _rename_checked(staging: Staging) -> None:
    """Renames over an empty folder, and on file systems without a rename that never replaces.

    An ordinary rename replaces at most an empty folder: it fails if a file appears there after the check, and
    leaves it unchanged.
    """
    if staging.file:
        _link_new(staging)
        return
    if os.path.lexists(staging.target) and not is_empty_folder(staging.target):
        raise target_exists(staging.target)
    try:
        staging.root.rename(staging.target)
    except OSError as error:
        if error.errno in (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR):
            raise target_exists(staging.target) from error
        raise


def _link_new(staging: Staging) -> None:
    """Gives the staged file the target's name, which fails if anything has that name."""
    try:
        staging.target.hardlink_to(staging.published)
    except FileExistsError:
        raise target_exists(staging.target) from None
    staging.published.unlink()


def _rename(source: Path, target: Path, flags: int) -> None:
    places = (_AT_FDCWD, os.fsencode(source), _AT_FDCWD, os.fsencode(target))
    checked(lambda: libc().renameat2(*places, ctypes.c_uint(flags)), target)
