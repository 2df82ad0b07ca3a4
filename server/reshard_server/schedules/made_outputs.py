"""Recognises and removes the output of a conversion, on a disk and in a bucket.

A folder is the same one if its inode is, and the digest of the record that the conversion wrote into it. It is renamed to a
hidden name beside it and then removed, so that nobody reads half of it. A file is the same one if its inode, its size and its time are.

The files of a prefix cannot be renamed at once. The record beside them is the same file if its inode and its digest are. The index is
removed first, so that nobody takes the others for a checkpoint, under the lock of the target; the record last, as in a bucket.

A bucket renames nothing. The record is the same if its version is. The output is removed as a run's unfinished output is: under
the lease of the target, so that nobody writes there, with the marker that makes it a checkpoint first. The record comes last,
so that a removal that was interrupted can recognise what it began.
"""

from __future__ import annotations

import hashlib
import logging
import os
import stat
from pathlib import Path

from reshard.errors import StorageError
from reshard.surface.places import (
    FILES_OF_PREFIX,
    BucketStore,
    Location,
    delete,
    held_target,
    remove_files,
)
from reshard_server.auth.path_rules import REMOVED_PREFIX
from reshard_server.schedules.hard_links import remove_tree

LOG = logging.getLogger(__name__)

RECORD = "slices.json"
INDEX = "model.safetensors.index.json"
"""The record of a delta, which has no other and writes it last."""


def output_stamp(output: Location) -> str | None:
    """Changes when something else takes the place of a converted checkpoint; None if there is none."""
    if isinstance(output.store, BucketStore):
        return _stamp_in_bucket(output)
    return _stamp_on_disk(Path(output.path))


def is_full_version(output: Location) -> bool:
    """Whether a version of the weights stands by itself: a conversion leaves its record there, a delta does not."""
    return (output / RECORD).is_file()


def _record_in(output: Location) -> Location:
    return output / (RECORD if is_full_version(output) else INDEX)


def remove(output: Location, number: str, known: str) -> bool:
    """Removes an output; False if it is gone or something else has its name.

    Args:
        number: distinguishes it from other outputs.
        known: its stamp.
    """
    if isinstance(output.store, BucketStore):
        return _remove_from_bucket(output.store, output, known)
    return _remove_on_disk(output, number, known)


def _record_beside(prefix: Path) -> Path:
    return prefix.with_name(f"{prefix.name}.{RECORD}")


def _stamp_on_disk(output: Path) -> str | None:
    """That of a folder, or of the prefix of files, of which nothing has the very name."""
    if os.path.lexists(output):
        if (of_file := _stamp_of_file(output)) is not None:
            return of_file
        record = output / RECORD
        return _stamp_of(output, record if record.exists() else output / INDEX)
    return _stamp_of(_record_beside(output), _record_beside(output))


def _stamp_of_file(output: Path) -> str | None:
    """That of a plain file; None for anything else."""
    try:
        found = output.lstat()
    except OSError:
        return None
    if not stat.S_ISREG(found.st_mode):
        return None
    return f"{found.st_ino}-{found.st_size}-{found.st_mtime_ns}"


def _stamp_of(kept: Path, record: Path) -> str | None:
    try:
        inode = kept.lstat().st_ino
        content = record.read_bytes()
    except OSError:
        return None
    return f"{inode}-{hashlib.sha256(content).hexdigest()}"


def _remove_on_disk(output: Location, number: str, known: str) -> bool:
    target = Path(output.path)
    hidden = target.with_name(f"{REMOVED_PREFIX}{number[:32]}")
    _remove_hidden(hidden)
    if _stamp_on_disk(target) != known:
        return False
    if not os.path.lexists(target):
        return _remove_prefix(output, known)
    target.rename(hidden)
    if _stamp_on_disk(hidden) != known:  # another folder took its name at this moment
        hidden.rename(target)
        return False
    LOG.info("removing %s, an old output of a schedule", target)
    _remove_hidden(hidden)
    return True


def _remove_hidden(hidden: Path) -> None:
    if _stamp_of_file(hidden) is None:
        remove_tree(hidden)
    else:
        hidden.unlink(missing_ok=True)


def _remove_prefix(output: Location, known: str) -> bool:
    prefix = Path(output.path)
    with held_target(output, FILES_OF_PREFIX) as held:
        is_same = _stamp_on_disk(prefix) == known
        if is_same:
            LOG.info("removing %s, an old output of a schedule", output)
            remove_files(prefix, _record_beside(prefix).name)
        held.abort()
    return is_same


def _stamp_in_bucket(output: Location) -> str | None:
    """The record's version, in one request."""
    found = _record_in(output).status()
    return found.version if found is not None and found.kind == "file" else None


def _remove_from_bucket(store: BucketStore, output: Location, known: str) -> bool:
    with held_target(output) as held:
        if _stamp_in_bucket(output) != known:
            return False
        LOG.info("removing %s, an old output of a schedule", output)
        record = _record_in(output).name
        held.adopt()  # unfinished from now on: without its marker
        delete(store, [f"{output.path}/{name}" for name in held.files() if name != record])
        held.abort()
    if _stamp_in_bucket(output) == known:
        raise StorageError(f"cannot remove {output}: its last objects could not be deleted")
    return True
