"""The folders of parts below the staging folder of a local target."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from msgspec.structs import replace

from reshard.storage.local.attempts import end_attempts
from reshard.storage.local.files import storage_errors
from reshard.storage.local.staging import Staging, locked, make_folders, staging_for
from reshard.storage.local.transaction import LocalTransaction


def part_staging(target: Path, name: str) -> Staging:
    """The staging paths of a part, which is a folder also where the whole target is one file; nothing is made."""
    whole = staging_for(target)
    folder = whole.folder / "parts" / name
    return replace(whole, folder=folder, root=folder / "checkpoint")


@contextmanager
def held_part_folder(target: Path, name: str) -> Iterator[LocalTransaction]:
    """The transaction of a part, whose folder no other process has in the block."""
    staging = part_staging(target, name)
    make_folders(staging.folder.parent)
    with locked(staging) as held:
        yield LocalTransaction(held)


def remove_part_folders(target: Path) -> None:
    """Removes the folder of all parts of a target; what still writes there finds no folder."""
    folder = staging_for(target).folder / "parts"
    dead = folder.with_name(f"dead-parts-{os.getpid()}")
    with suppress(FileNotFoundError):
        for part in folder.iterdir():
            if part.is_dir():
                end_attempts(part)
    with storage_errors("remove", folder), suppress(FileNotFoundError):
        folder.rename(dead)
    shutil.rmtree(dead, ignore_errors=True)
    with suppress(OSError):  # something else is kept there
        folder.parent.rmdir()
