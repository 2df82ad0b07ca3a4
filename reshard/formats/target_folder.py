"""The path of a target folder, and the check that it holds nothing else."""

from __future__ import annotations

import os
from pathlib import Path

from reshard.errors import TargetExistsError
from reshard.formats.registry import is_checkpoint, local_path
from reshard.storage.local import storage_errors


def target_path(target: str) -> str:
    """A local path whose last part is a name, so that something can lie beside it."""
    path = local_path(target, writing=True)
    # A folder without a name of its own (``.``, ``a/..``) is named by where it lies.
    return path if Path(path).name not in ("", "..") else os.path.realpath(path)


def refuse_other_content(target: Path) -> None:
    """Overwriting replaces the whole folder, so it must hold a checkpoint or nothing."""
    with storage_errors("look at", target):
        if not target.is_dir() or is_checkpoint(str(target)) or not any(target.iterdir()):
            return
    raise TargetExistsError(
        f"the target {str(target)!r} is a folder that holds something else than a checkpoint, and was left "
        "untouched; overwriting replaces only checkpoints and empty folders: choose another target, or empty it"
    )
