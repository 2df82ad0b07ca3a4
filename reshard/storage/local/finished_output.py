"""A finished output on a disk: a stamp that identifies it, and its removal.

A folder is the same one if its inode and the digest of its record are the same. It is renamed to a hidden name beside it and then
removed, so that no reader sees half of it. A file is the same one if its inode, its size and its time are.

The files of a prefix cannot be renamed at once. The record beside them is the same file if its inode and its digest are. They are
removed under the lock of the target: the index first, so that no reader takes the others for a checkpoint, the record last, as in
a bucket.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
from collections.abc import Sequence
from pathlib import Path

from reshard.storage.local.files import storage_errors
from reshard.storage.local.prefix_files import remove_files
from reshard.storage.local.staging import FILES_OF_PREFIX
from reshard.storage.local.transaction import held_folder


def stamp_on_disk(output: Path, records: Sequence[str]) -> str | None:
    """The stamp of a folder, of a file, or of files with this prefix if nothing has the name itself."""
    if not os.path.lexists(output):
        beside = _record_beside(output, records)
        return _stamp_of(beside, beside)
    if (of_file := _stamp_of_file(output)) is not None:
        return of_file
    there = (output / record for record in records if (output / record).exists())
    return _stamp_of(output, next(there, output / records[-1]))


def remove_from_disk(output: Path, stamp: str, records: Sequence[str], aside: str) -> bool:
    """Removes an output after renaming it to ``aside``; an interrupted removal may have left it there."""
    hidden = output.with_name(aside)
    _remove_hidden(hidden)
    if stamp_on_disk(output, records) != stamp:
        return False
    if not os.path.lexists(output):
        return _remove_prefix(output, stamp, records)
    with storage_errors("rename", output):
        output.rename(hidden)
    if stamp_on_disk(hidden, records) != stamp:  # another folder just took its name
        with storage_errors("rename", hidden):
            hidden.rename(output)
        return False
    _remove_hidden(hidden)
    return True


def _record_beside(prefix: Path, records: Sequence[str]) -> Path:
    return prefix.with_name(f"{prefix.name}.{records[0]}")


def _stamp_of_file(output: Path) -> str | None:
    """The stamp of a plain file; None for anything else."""
    try:
        found = output.lstat()
    except OSError:
        return None
    if not stat.S_ISREG(found.st_mode):
        return None
    return f"{found.st_ino}-{found.st_size}-{found.st_mtime_ns}"


def _stamp_of(kept: Path, record: Path) -> str | None:
    """The stamp of ``kept``: its inode, and the digest of its record."""
    try:
        inode = kept.lstat().st_ino
        content = record.read_bytes()
    except OSError:
        return None
    return f"{inode}-{hashlib.sha256(content).hexdigest()}"


def _remove_prefix(prefix: Path, stamp: str, records: Sequence[str]) -> bool:
    with held_folder(prefix, FILES_OF_PREFIX) as held:
        is_same = stamp_on_disk(prefix, records) == stamp
        if is_same:
            remove_files(prefix, _record_beside(prefix, records).name)
        held.abort()
    return is_same


def _remove_hidden(hidden: Path) -> None:
    with storage_errors("remove", hidden):
        if _stamp_of_file(hidden) is None:
            remove_tree(hidden)
        else:
            hidden.unlink(missing_ok=True)


def remove_tree(folder: Path) -> None:
    """Removes a folder if it exists; another process may remove it at the same time. Raises OSError if it cannot be removed."""
    try:
        shutil.rmtree(folder)
    except (FileNotFoundError, NotADirectoryError):
        if folder.exists():
            shutil.rmtree(folder)
