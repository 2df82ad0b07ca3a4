"""Steps: the folders of a training run, of which each that has a number for a name is a checkpoint.

Orbax's CheckpointManager names them ``1000``, ``00001000`` or ``step_1000``, as it was told.
"""

from __future__ import annotations

import os
import re

from reshard.formats.detect import is_checkpoint
from reshard.formats.orbax.container import is_finished
from reshard.storage.local import storage_errors

_STEP = re.compile(r"(?:.*_)?([0-9]{1,18})", re.DOTALL | re.ASCII)


def step_of(name: str) -> int | None:
    """The step that a folder's name stands for; None for any other name."""
    match = _STEP.fullmatch(name)
    return int(match[1]) if match else None


def committed_steps(path: str) -> dict[int, str]:
    """The steps below a local folder that are finished checkpoints, ascending, and their folders' names.

    Where two folders stand for one step, the first by name counts. Raises StorageError where the folder
    cannot be listed.
    """
    with storage_errors("read", path), os.scandir(path) as entries:
        names = sorted(e.name for e in entries if e.is_dir(follow_symlinks=False))
    found: dict[int, str] = {}
    for name in names:
        step = step_of(name)
        if step is not None and step not in found and is_committed(f"{path}/{name}"):
            found[step] = name
    return dict(sorted(found.items()))


def is_committed(path: str) -> bool:
    """Whether a local folder bears the marks of a checkpoint, and none of an unfinished one."""
    return is_checkpoint(path) and is_finished(path)
