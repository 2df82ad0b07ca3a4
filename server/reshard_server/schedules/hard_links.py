"""Holds a step by hard links to its files, so that the training run may delete it meanwhile.

Links lie in ``ROOT/.reshard-held/ID``, a folder that is made anew for each conversion. They share inodes,
sizes and times with the step's files, so a conversion that is killed goes on from its journal as long as
the hold stays. Linking is over in moments where reading takes minutes; still, the step may be deleted just
then, or have lost files before: it is listed before and after, and where the two differ it is gone.

The hold is synced before anything relies on it: after a power failure half a hold would be taken for the
whole step.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

from reshard_server.auth.reserved_names import HELD_FOLDER
from reshard_server.schedules.folder_listing import (
    SLACK_SECONDS,
    GoneError,
    Listing,
    check_whole,
    listing,
)
from reshard_server.schedules.remove_tree import remove_tree

SETTLING_SECONDS = 0.1
"""A step that was written moments ago is looked at once more after this, since no time tells yet whether it
lost files; whoever deletes it is faster."""


class StoppedError(Exception):
    """This server ends; the step is held another time."""


def hold(step: Path, at: Path, *, asked: bool, stopping: Callable[[], bool]) -> str | None:
    """Links every file of a step below ``at``; None, or the reason why that cannot be done here.

    Args:
        asked: somebody asked for this very step, so one that lost files before is taken as it is.

    Raises GoneError where the step is not whole any more. Then, and where it is not held, nothing is left.
    """
    held = False
    try:
        before = _looked_at(step, asked=asked)
        why = _why_not(before, step) or _linked(before, step, at, stopping)
        check_whole(before, step)
        if _is_young(before, asked=asked):
            time.sleep(SETTLING_SECONDS)
            check_whole(before, step)
        held = why is None
    finally:
        if not held:
            let_go(at)
    return why


def let_go(at: Path) -> None:
    """Removes a hold, whole or not; the step's own files stay. Raises OSError where that is refused."""
    if at.parent.name != HELD_FOLDER:
        raise ValueError(f"{at} is no hold")
    remove_tree(at)


def _looked_at(step: Path, *, asked: bool) -> Listing:
    found = listing(step)
    if found.lost_files and not asked:
        raise GoneError(
            "files of it were deleted after it was written; where that was meant, run this step by its number"
        )
    return found


def _is_young(before: Listing, *, asked: bool) -> bool:
    return not asked and time.time() - before.written_ns / 1e9 < 2 * SLACK_SECONDS


def _why_not(before: Listing, step: Path) -> str | None:
    if before.odd is not None:
        return f"{step.name}/{before.odd} is neither a file nor a folder"
    return None


def _linked(before: Listing, step: Path, at: Path, stopping: Callable[[], bool]) -> str | None:
    """Why the files cannot be linked; None where they are."""
    try:
        at.parent.mkdir(mode=0o700, exist_ok=True)
        for folder in sorted(before.folders):
            (at / folder).mkdir(mode=0o700)
        for path in before.files:
            if stopping():
                raise StoppedError
            _link(step, at, path)
        for folder in [*before.folders, ".."]:
            _sync(at / folder)
    except OSError as error:
        return f"hard links cannot be made here: {error.strerror}"
    return None


def _link(step: Path, at: Path, path: str) -> None:
    try:
        os.link(step / path, at / path, follow_symlinks=False)
    except FileNotFoundError as error:
        raise GoneError("files of it were deleted while it was looked at") from error


def _sync(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
