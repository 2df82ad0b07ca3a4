"""A target of several files whose names begin with the target's: hard links give them these names, the index last.

No rename makes several files appear at once. But until the last file has its name, no reader takes the others for a checkpoint. Staged
files keep their staged names, too, until they are removed, so that the run after a killed one recognises its files.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from reshard.errors import StorageError, TargetExistsError
from reshard.storage.local.files import storage_errors
from reshard.storage.local.staging import STAGED_PREFIX, Staging, staging_for
from reshard.storage.local.syncing import fsync


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
