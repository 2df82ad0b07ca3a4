"""Finished before: whether a target is the result of the very conversion that is asked for."""

from __future__ import annotations

import os
from contextlib import ExitStack
from pathlib import Path

from reshard.engine.identity import Identity
from reshard.errors import ReshardError, StorageError
from reshard.formats.detect import open_reader
from reshard.formats.slices_json import read_slices
from reshard.storage.staging import dissolve, held, staging_for
from reshard.storage.syncing import fsync


def is_result(target: str, identity: Identity) -> bool:
    """Whether the target can be opened, and each of its trees names this conversion of this source."""
    try:
        if Path(target).is_symlink() or not Path(target).is_dir():
            return False
        items = [item for item in open_reader(target).container.items if item.is_tree]
        found = [read_slices(Path(target, item.directory)) for item in items]
    except (ReshardError, OSError):
        return False
    return bool(found) and all(s is not None and s.conversion == identity.output for s in found)


def remove_leftovers(target: Path) -> None:
    """Removes what a run left that ended after it had published, unless another run is at work.

    That run may have ended before it had made the target's name durable, so that is done here.
    """
    if not os.path.lexists(staging_for(target).folder):
        return
    with ExitStack() as stack:
        try:
            staging = stack.enter_context(held(target))
        except StorageError:
            return
        fsync(target.parent)
        dissolve(staging)
