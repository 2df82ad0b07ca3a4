"""Lists the checkpoints below a root, in the order of their paths, a page at a time.

Folders are walked in order, parents before their children; folders within a checkpoint are not walked. A page ends when
it is full, or when it has looked at many folders. The next page begins after the last folder that was looked at, so a
listing ends for any tree, even if folders are added or removed meanwhile::

    data/run7              steps 1000, 2000 (not listed again one by one)
    data/run7/best         a checkpoint beside the steps
    data/served/1000       …

Links are not followed. Hidden folders, and names that no client's path may have, are left out.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import reshard
from reshard.errors import ReshardError
from reshard_server.auth.root_paths import LONGEST_PATH, may_be_named
from reshard_server.schemas.checkpoint import FoundCheckpoint

MOST_FOLDERS = 5000
MOST_SECONDS = 2.0
"""Limits of one page."""

DEEPEST = 24

Key = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Browsed:
    """A page of a listing.

    Attributes:
        after: the next page begins after this folder; None on the last page.
    """

    checkpoints: list[FoundCheckpoint]
    after: Key | None


@dataclass(frozen=True, slots=True)
class _VisitedFolder:
    """A folder that was looked at, and its checkpoint or steps, if it has any."""

    key: Key
    found: FoundCheckpoint | None


def browse(
    folder: Path, name: str, page_size: int, after: Key = (), most_seconds: float = MOST_SECONDS
) -> Browsed:
    """The checkpoints below a folder.

    Args:
        name: the client's path of the folder.
        after: the last folder of the previous page, as names below ``folder``.
        most_seconds: time limit of the page, which looks at one folder in any case.
    """
    found: list[FoundCheckpoint] = []
    deadline = time.monotonic() + most_seconds
    for looked, visited in enumerate(_walk(folder, name, (), after), 1):
        if visited.found is not None:
            found.append(visited.found)
        if len(found) >= page_size or looked >= MOST_FOLDERS or time.monotonic() > deadline:
            return Browsed(found, visited.key)
    return Browsed(found, None)


def _walk(folder: Path, name: str, key: Key, after: Key) -> Iterator[_VisitedFolder]:
    """Visits a folder that is not a checkpoint, and the folders in it that come after ``after``."""
    names = _folders(folder)
    steps = _steps(folder, key) if names else {}
    if key and _is_after(key, after):
        yield _VisitedFolder(key, _of_steps(folder, name, steps) if steps else None)
    inner = set(steps.values())
    for each in names:
        below = (*key, each)
        if each not in inner and (_is_after(below, after) or _contains(below, after)):
            yield from _look(folder / each, f"{name}/{each}", below, after)


def _look(folder: Path, name: str, key: Key, after: Key) -> Iterator[_VisitedFolder]:
    if len(name.encode()) > LONGEST_PATH:
        return
    kind = _format(folder)
    if kind is None:
        if len(key) < DEEPEST:
            yield from _walk(folder, name, key, after)
    elif _is_after(key, after):
        yield _VisitedFolder(key, _of_checkpoint(folder, name, kind))


def _is_after(key: Key, place: Key) -> bool:
    return key > place


def _contains(key: Key, place: Key) -> bool:
    """Whether the folder contains a place or is the place; then folders in it may come after the place."""
    return place[: len(key)] == key


def _folders(folder: Path) -> list[str]:
    """The names of the folders to visit; none if the folder cannot be listed."""
    try:
        with os.scandir(folder) as entries:
            names = [e.name for e in entries if e.is_dir(follow_symlinks=False)]
    except OSError:
        return []
    return sorted(n for n in names if not n.startswith(".") and may_be_named(n))


def _steps(folder: Path, key: Key) -> dict[int, str]:
    """The steps and their folders' names. A root itself has no path, so its folders are listed one by one."""
    if not key:
        return {}
    try:
        steps = reshard.steps(folder)
    except ReshardError:
        return {}
    return {step: name for step, name in steps.items() if may_be_named(name)}


def _format(folder: Path) -> str | None:
    try:
        return reshard.checkpoint_format(folder)
    except (ReshardError, OSError):  # gone, or not readable
        return None


def _of_steps(folder: Path, name: str, steps: dict[int, str]) -> FoundCheckpoint | None:
    modified = _modified_at(folder)
    if modified is None:
        return None
    return FoundCheckpoint(
        path=name,
        kind="steps",
        steps=list(steps),
        folders=list(steps.values()),
        modified_at=modified,
    )


def _of_checkpoint(folder: Path, name: str, kind: str) -> FoundCheckpoint | None:
    modified = _modified_at(folder)
    if modified is None:
        return None
    return FoundCheckpoint(path=name, kind=kind, modified_at=modified)


def _modified_at(folder: Path) -> datetime | None:
    try:
        return datetime.fromtimestamp(folder.stat().st_mtime, UTC)
    except (OSError, OverflowError, ValueError):
        return None
