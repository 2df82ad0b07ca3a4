"""Publishing: one rename makes the staged folder or file the target; it replaces at most an empty folder.

Everything is synced before the rename, with errors checked, and the parent folder of the target after it.

No rename makes several files appear at once. A target of several files gets its names by hard links, the index last: without it no
reader takes the others for a checkpoint. Staged files keep their staged names, too, until they are removed, so that the run after a
killed one recognises its files. TensorFlow finds the latest such target by the file ``checkpoint``, which is written unless it
belongs to a training: a training resumes from the prefix that it names, and deletes the listed ones.
(``tensorflow/python/training/checkpoint_state.proto``)
"""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from reshard.errors import StorageError, TargetExistsError
from reshard.storage.local.files import close_after_reading, libc, storage_errors, write_file
from reshard.storage.local.staging import STAGED_PREFIX, Staging, staging_for
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
    # Before the rename, against a power failure that keeps the name and loses the bytes.
    sync_tree(staging.root)
    _refuse_replaced(staging)
    with storage_errors("publish", staging.target):
        if staging.is_prefix:
            link_files(staging, last)
        elif overwrite and os.path.lexists(staging.target):
            refuse_other_kind(staging.target, is_file=bool(staging.file))
            # Against another program that has put something else there since the run began.
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
    # For the message only: the rename itself fails if something appears after this look.
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


def linked_name(target: Path, staged: str) -> Path:
    """The path at which a staged file gets its final name."""
    return target.parent / f"{target.name}{staged.removeprefix(STAGED_PREFIX)}"


def link_files(staging: Staging, last: Sequence[str]) -> None:
    """Gives every staged file its name beside the target, durably, those of ``last`` in order after the others.

    Raises TargetExistsError if a file of another run has one of the names.
    """
    for name in [*(name for name in _staged(staging) if name not in last), *last]:
        if name in last:
            fsync(
                staging.target.parent
            )  # the files that it lists have their names, also after a power failure
        _link(staging, name)


def _link(staging: Staging, name: str) -> None:
    there = linked_name(staging.target, name)
    try:
        there.hardlink_to(staging.root / name)
    except FileExistsError:
        # The name of an earlier try of this run is no conflict: it was killed between two links.
        if not _is_same(staging.root / name, there):
            raise prefix_exists(staging.target, there) from None
    except PermissionError as error:
        raise StorageError(
            f"{str(there)!r} cannot be made by a link to the staged file, which this file system may not have: {error}; write to another "
            "file system, and copy the files from there, the index last"
        ) from error


def is_linked(staging: Staging, names: Sequence[str]) -> bool:
    """True if these staged files have their final names beside the target."""
    return all(_is_same(staging.root / name, linked_name(staging.target, name)) for name in names)


def unlink_files(staging: Staging) -> None:
    """Removes the final names if a run gave them to some of its files, but not to all."""
    names = list(_staged(staging))
    linked = [name for name in names if is_linked(staging, [name])]
    if len(linked) < len(names):
        for name in linked:
            with suppress(OSError):
                linked_name(staging.target, name).unlink()


def remove_files(target: Path, last: str) -> None:
    """Removes the files of a prefix: the index first, so that no reader takes the others for a checkpoint, and ``last`` at the end."""
    data = [name for name in _beside(target) if name != f"{target.name}.index"]
    for name in (f"{target.name}.index", *data, last):
        with storage_errors("remove", target.parent / name):
            (target.parent / name).unlink(missing_ok=True)


def check_prefix(target: Path) -> None:
    """Refuses a target with the files of any other run, and one that is a file or a folder itself.

    Raises TargetExistsError, even with ``overwrite``: no single step replaces several files.
    """
    if os.path.lexists(target):
        raise TargetExistsError(
            f"the target {str(target)!r} is there already, but it should be what the names of several files begin with; choose another "
            f"name, such as {str(target / 'ckpt')!r}"
        )
    staging = staging_for(target)
    for name in _beside(target):
        staged = staging.root / f"{STAGED_PREFIX}{name[len(target.name) :]}"
        if not _is_same(staged, target.parent / name):
            raise prefix_exists(target, target.parent / name)


def _beside(target: Path) -> Iterator[str]:
    with storage_errors("list", target.parent):
        if target.parent.is_dir():
            begins = (f"{target.name}.index", f"{target.name}.data-")
            yield from sorted(p.name for p in target.parent.iterdir() if p.name.startswith(begins))


def _staged(staging: Staging) -> Iterator[str]:
    with storage_errors("list", staging.root), suppress(FileNotFoundError):
        yield from sorted(
            p.name for p in staging.root.iterdir() if p.name.startswith(STAGED_PREFIX)
        )


def _is_same(a: Path, b: Path) -> bool:
    try:
        return os.path.samestat(os.lstat(a), os.lstat(b))
    except FileNotFoundError:
        return False


def prefix_exists(target: Path, there: Path) -> TargetExistsError:
    """The error, to be raised, for an existing file with the name of one of the target's."""
    return TargetExistsError(
        f"the target {str(target)!r} exists already, with the file {there.name!r}, and was left untouched; several files cannot be "
        "replaced in one step: choose another name, or remove them"
    )


_NAME = "checkpoint"
_BEGINS = b"# Written by reshard: the newest checkpoint that it made in this folder.\n"


def name_latest(staging: Staging) -> None:
    """Makes the file name the target of several files, which must exist, unless the file belongs to a training.

    Raises StorageError if the system refuses it.
    """
    there, made = staging.target.parent / _NAME, staging.folder / "latest"
    begins = _beginning(there)
    if begins not in (None, _BEGINS):  # of a training, which would resume from another prefix
        return
    write_file(
        str(made), _BEGINS + f'model_checkpoint_path: "{_quoted(staging.target)}"\n'.encode()
    )
    fsync(made)
    with storage_errors("write", there):
        if begins:
            made.replace(there)
        else:
            with suppress(FileExistsError):  # a training has begun here meanwhile
                there.hardlink_to(made)
            made.unlink()


def _beginning(there: Path) -> bytes | None:
    """The first bytes of the existing file, as many as identify its writer; None if there is none."""
    with storage_errors("read", there):
        try:
            fd = os.open(there, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except FileNotFoundError:
            return b"" if there.is_symlink() else None
        try:
            return os.read(fd, len(_BEGINS))
        except IsADirectoryError:
            return b""
        finally:
            close_after_reading(fd)


def _quoted(target: Path) -> str:
    """The name of a target as a string of a text proto."""
    octets = os.fsencode(target.name)
    plain = (0x20 <= octet < 0x7F and octet not in b'"\\' for octet in octets)
    return "".join(
        chr(octet) if is_plain else f"\\{octet:03o}"
        for octet, is_plain in zip(octets, plain, strict=True)
    )
