"""Browsing: the checkpoints below a root, in order of their paths, a page at a time.

Folders are walked in order, parents before what is in them, and none in a checkpoint. A page ends when it
is full, or when much was looked at; the next begins behind the last folder that was looked at, so that a
listing of any tree comes to its end, whatever is added or removed meanwhile::

    data/run7              steps 1000, 2000 (not listed again one by one)
    data/run7/best         a checkpoint beside them
    data/served/1000       …

Links are not followed, and hidden folders and names that no client could ask for are left out.
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
from reshard_server.auth.paths import LONGEST_PATH, may_be_named
from reshard_server.schemas.checkpoint import FoundCheckpoint

MOST_FOLDERS = 5000
MOST_SECONDS = 2.0
"""What one page may look at."""

DEEPEST = 24

Key = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Browsed:
    """A page.

    Attributes:
        behind: where the next page begins; None where this one is the last.
    """

    checkpoints: list[FoundCheckpoint]
    behind: Key | None


@dataclass(frozen=True, slots=True)
class _Place:
    """A folder that was looked at; ``found`` is what is to be told of it."""

    key: Key
    found: FoundCheckpoint | None


def browse(
    folder: Path, name: str, page_size: int, behind: Key = (), most_seconds: float = MOST_SECONDS
) -> Browsed:
    """Checkpoints below a folder that clients know by a name.

    Args:
        behind: names below the folder, of the last one that an earlier page looked at.
        most_seconds: after which the page ends; one folder is looked at in any case.
    """
    found: list[FoundCheckpoint] = []
    deadline = time.monotonic() + most_seconds
    for looked, place in enumerate(_walk(folder, name, (), behind), 1):
        if place.found is not None:
            found.append(place.found)
        if len(found) >= page_size or looked >= MOST_FOLDERS or time.monotonic() > deadline:
            return Browsed(found, place.key)
    return Browsed(found, None)


def _walk(folder: Path, name: str, key: Key, behind: Key) -> Iterator[_Place]:
    """What is in a folder, which is no checkpoint itself, as far as it comes behind a place."""
    names = _folders(folder)
    steps = _steps(folder, key) if names else {}
    if key and _is_behind(key, behind):
        yield _Place(key, _of_steps(folder, name, steps) if steps else None)
    inner = set(steps.values())
    for each in names:
        below = (*key, each)
        if each not in inner and (_is_behind(below, behind) or _leads_to(below, behind)):
            yield from _look(folder / each, f"{name}/{each}", below, behind)


def _look(folder: Path, name: str, key: Key, behind: Key) -> Iterator[_Place]:
    if len(name.encode()) > LONGEST_PATH:
        return
    if not _is_checkpoint(folder):
        if len(key) < DEEPEST:
            yield from _walk(folder, name, key, behind)
    elif _is_behind(key, behind):
        yield _Place(key, _of_checkpoint(folder, name))


def _is_behind(key: Key, place: Key) -> bool:
    return key > place


def _leads_to(key: Key, place: Key) -> bool:
    """Whether it is a folder above a place, or the place itself: what is in it may come behind."""
    return place[: len(key)] == key


def _folders(folder: Path) -> list[str]:
    """Names of the folders that are looked at; none where it cannot be listed."""
    try:
        with os.scandir(folder) as entries:
            names = [e.name for e in entries if e.is_dir(follow_symlinks=False)]
    except OSError:
        return []
    return sorted(n for n in names if not n.startswith(".") and may_be_named(n))


def _steps(folder: Path, key: Key) -> dict[int, str]:
    """Steps by their folders' names; a root itself has no path, so what is in it is told one by one."""
    if not key:
        return {}
    try:
        found = reshard.steps(folder)
    except ReshardError:
        return {}
    return {step: name for step, name in found.items() if may_be_named(name)}


def _is_checkpoint(folder: Path) -> bool:
    try:
        return reshard.is_checkpoint(folder)
    except (ReshardError, OSError):  # gone, or not ours to read
        return False


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


def _of_checkpoint(folder: Path, name: str) -> FoundCheckpoint | None:
    modified = _modified_at(folder)
    if modified is None:
        return None
    return FoundCheckpoint(path=name, kind="orbax", modified_at=modified)


def _modified_at(folder: Path) -> datetime | None:
    try:
        return datetime.fromtimestamp(folder.stat().st_mtime, UTC)
    except (OSError, OverflowError, ValueError):
        return None
