"""Recognises and removes the output of a conversion, on a disk and in a bucket.

A folder is the same one if its inode is, and the digest of the record that the conversion wrote into it. It is renamed to a
hidden name beside it and then removed, so that nobody reads half of it.

A bucket renames nothing. The record is the same if its version is. The output is removed as a run's unfinished output is: under
the lease of the target, so that nobody writes there, with the marker that makes it a checkpoint first. The record comes last,
so that a removal that was interrupted can recognise what it began.
"""

from __future__ import annotations

import hashlib
import logging
from pathlib import Path

from reshard.errors import StorageError
from reshard.surface.outputs import BucketStore, delete, held_target
from reshard.surface.places import Location
from reshard_server.auth.path_rules import REMOVED_PREFIX
from reshard_server.schedules.hard_links import remove_tree

LOG = logging.getLogger(__name__)

RECORD = "slices.json"


def identity(output: Location) -> str | None:
    """Identifies a converted checkpoint; None if there is none."""
    if isinstance(output.store, BucketStore):
        return _identity_in_bucket(output)
    return _identity_of_folder(Path(output.path))


def remove(output: Location, number: str, known: str) -> bool:
    """Removes an output; False if it is gone or something else has its name.

    Args:
        number: distinguishes it from other outputs.
        known: its identity.
    """
    if isinstance(output.store, BucketStore):
        return _remove_from_bucket(output.store, output, known)
    return _remove_folder(Path(output.path), number, known)


def _identity_of_folder(folder: Path) -> str | None:
    try:
        inode = folder.lstat().st_ino
        content = (folder / RECORD).read_bytes()
    except OSError:
        return None
    return f"{inode}-{hashlib.sha256(content).hexdigest()}"


def _remove_folder(target: Path, number: str, known: str) -> bool:
    hidden = target.with_name(f"{REMOVED_PREFIX}{number[:32]}")
    remove_tree(hidden)
    if _identity_of_folder(target) != known:
        return False
    target.rename(hidden)
    if _identity_of_folder(hidden) != known:  # another folder took its name at this moment
        hidden.rename(target)
        return False
    LOG.info("removing %s, an old output of a schedule", target)
    remove_tree(hidden)
    return True


def _identity_in_bucket(output: Location) -> str | None:
    """The record's version, in one request."""
    found = (output / RECORD).status()
    return found.version if found is not None and found.kind == "file" else None


def _remove_from_bucket(store: BucketStore, output: Location, known: str) -> bool:
    with held_target(output) as held:
        if _identity_in_bucket(output) != known:
            return False
        LOG.info("removing %s, an old output of a schedule", output)
        held.adopt()  # unfinished from now on: without its marker
        delete(store, [f"{output.path}/{name}" for name in held.files() if name != RECORD])
        held.abort()
    if _identity_in_bucket(output) == known:
        raise StorageError(f"cannot remove {output}: its last objects could not be deleted")
    return True
