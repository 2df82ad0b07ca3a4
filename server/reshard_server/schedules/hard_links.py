"""Keeps a step readable by hard links to its files, even if the training run deletes it meanwhile.

The links are in ``ROOT/.reshard-held/ID``, a folder that is made anew for each conversion; those of a prefix begin with its name there. They
share inodes, sizes and times with the step's files, so a killed conversion resumes from its journal as long as the links stay. Linking takes
moments and reading takes minutes; still, the step may be deleted just then, or may have lost files before. So it is
listed before and after; if the listings differ, the step is gone.

The links are synced before anything relies on them: after a power failure half of them would pass for the whole step.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path

from reshard.formats.registry import files_of
from reshard.storage.location import Location
from reshard_server.auth.path_rules import LINKS_FOLDER
from reshard_server.schedules.folder_listing import (
    LOST_MEANWHILE,
    SLACK_SECONDS,
    GoneError,
    Listing,
    check_whole,
    listing,
)

SETTLING_SECONDS = 0.1
"""A step that was written moments ago is listed once more after this pause: its times do not show yet whether it
lost files."""


class StoppedError(Exception):
    """This server ends; the step is linked later."""


def links_for(step: Location, root: Location, number: str) -> Path:
    """The source to read in place of a step whose files are linked: a folder, or a prefix of files in it."""
    folder = Path(root.path, LINKS_FOLDER, number)
    return folder if files_of(step) is None else folder / step.name


def link_step(step: Path, at: Path, *, requested: bool, stopping: Callable[[], bool]) -> str | None:
    """Links every file of a step below ``at``; returns None, or the reason why this file system cannot do it.

    Args:
        requested: a client asked for this step, so it is taken as it is even if it lost files before.

    Raises GoneError if the step is no longer whole. Then, and if linking fails, no links remain.
    """
    is_linked = False
    try:
        before = _listed(step, requested=requested)
        why = _why_not(before, step) or _link_files(before, step, at, stopping)
        check_whole(before, step)
        if _is_young(before, requested=requested):
            time.sleep(SETTLING_SECONDS)
            check_whole(before, step)
        is_linked = why is None
    finally:
        if not is_linked:
            remove_links(at)
    return why


def remove_links(at: Path) -> None:
    """Removes a folder of links, complete or not; the step's own files stay. Raises OSError if that fails."""
    remove_tree(_folder_of(at))


def _folder_of(at: Path) -> Path:
    """The folder of links at ``at``, or the folder of the links with that prefix."""
    for folder in (at, at.parent):
        if folder.parent.name == LINKS_FOLDER:
            return folder
    raise ValueError(f"{at} is not a folder of links")


def remove_tree(folder: Path) -> None:
    """Removes a folder if it exists; another process may remove it at the same time.

    Raises OSError if it cannot be removed.
    """
    try:
        shutil.rmtree(folder)
    except (FileNotFoundError, NotADirectoryError):
        if folder.exists():
            shutil.rmtree(folder)


def _listed(step: Path, *, requested: bool) -> Listing:
    listed = listing(step)
    if listed.lost_files and not requested:
        raise GoneError(
            "some of its files were deleted after it was written; if that was intended, run this step by its number"
        )
    return listed


def _is_young(before: Listing, *, requested: bool) -> bool:
    return not requested and time.time() - before.written_ns / 1e9 < 2 * SLACK_SECONDS


def _why_not(before: Listing, step: Path) -> str | None:
    if before.odd is not None:
        odd = before.odd if before.is_prefix else f"{step.name}/{before.odd}"
        return f"{odd} is neither a file nor a folder"
    return None


def _link_files(before: Listing, step: Path, at: Path, stopping: Callable[[], bool]) -> str | None:
    """Links the files; returns the reason why they cannot be linked, or None."""
    try:
        above = _folder_of(at).parent
        above.mkdir(mode=0o700, exist_ok=True)
        folders = [at / path for path in sorted(before.folders)] or [_folder_of(at)]
        for folder in folders:
            folder.mkdir(mode=0o700)
        for path in before.files:
            if stopping():
                raise StoppedError
            _link(before.place(step, path), before.place(at, path))
        for folder in [*folders, above]:
            _sync(folder)
    except OSError as error:
        return f"hard links cannot be made here: {error.strerror}"
    return None


def _link(file: Path, at: Path) -> None:
    try:
        os.link(file, at, follow_symlinks=False)
    except FileNotFoundError as error:
        raise GoneError(LOST_MEANWHILE) from error


def _sync(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
