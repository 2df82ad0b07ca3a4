"""Lists the checkpoints below a root, in the order of their paths, a page at a time.

Folders are walked in order, parents before their children; folders within a checkpoint are not walked. A page ends when
it is full, or when it has looked at many folders. The next page begins after the last folder that was looked at, so a
listing ends for any tree, even if folders are added or removed meanwhile::

    data/run7              steps 1000, 2000 (not listed again one by one)
    data/run7/best         a checkpoint beside the steps
    data/published         versions of weights: weight_v000001, … (not listed again one by one)
    data/served/1000       …
    data/tf/ckpt-7         the prefix of TensorFlow's files, which are not listed themselves
    data/m.weights.h5      a file that is a checkpoint, beside which no other file makes one of the folder
    data/out               a safetensors model, with the steps of its training run in the same folder
    data/out/eval          a checkpoint below it

In a bucket each folder is listed once for a page; a folder has no time there. Links that lead out of a folder are not followed. Hidden
folders, and names that no client's path may have, are left out.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from reshard.deltas.versions import version_folders
from reshard.errors import ReshardError, StorageError
from reshard.formats.known_formats import files_of
from reshard.formats.registry import committed_format, may_stand_above_others, single_files, viewed
from reshard.formats.steps import committed_steps, names_in
from reshard.storage.location import Location
from reshard_server.auth.local_root import LONGEST_PATH, may_be_named
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
    """A folder or file that was looked at, and its checkpoint or steps, if it has any."""

    key: Key
    found: FoundCheckpoint | None


def browse(
    folder: Location, name: str, page_size: int, after: Key = (), most_seconds: float | None = None
) -> Browsed:
    """The checkpoints below a folder.

    Args:
        name: the client's path of the folder.
        after: the last folder of the previous page, as names below ``folder``.
        most_seconds: time limit of the page, which looks at one folder in any case; None is ``MOST_SECONDS``.
    """
    folder, found = folder.remembered(), list[FoundCheckpoint]()
    deadline = time.monotonic() + (MOST_SECONDS if most_seconds is None else most_seconds)
    for looked, visited in enumerate(_walk(folder, name, (), after, None), 1):
        if visited.found is not None:
            found.append(visited.found)
        if len(found) >= page_size or looked >= MOST_FOLDERS or time.monotonic() > deadline:
            return Browsed(found, visited.key)
    return Browsed(found, None)


def _walk(
    folder: Location, name: str, key: Key, after: Key, kind: str | None
) -> Iterator[_VisitedFolder]:
    """Visits a folder, and its contents after ``after``.

    Args:
        kind: the format of the checkpoint whose files lie right in the folder; None if they are none.
    """
    names = _names(folder, key, names_in)
    steps = _steps(folder, key) if names else {}
    versions = [n for n in _names(folder, key, version_folders) if n in names] if key else []
    if key and key > after:
        yield _VisitedFolder(key, _found(folder, name, kind, steps, versions))
    inner = {*steps.values(), *versions}
    # A root has no path of its own: a model with its files right in it is named by its file or its index.
    files_of_folder = partial(single_files, is_named="/" in name)
    files = set() if kind else set(_names(folder, key, files_of_folder))
    for each in sorted({*names, *files}):
        below = (*key, each)
        if each not in inner and (below > after or after[: len(below)] == below):
            yield from _look(folder / each, f"{name}/{each}", below, after, is_file=each in files)


def _look(
    folder: Location, name: str, key: Key, after: Key, *, is_file: bool
) -> Iterator[_VisitedFolder]:
    if len(name.encode()) > LONGEST_PATH:
        return
    kind = _format(folder, key)
    has_others = not is_file and (kind is None or may_stand_above_others(kind))
    if has_others and len(key) < DEEPEST:
        yield from _walk(folder, name, key, after, kind)
    elif kind is not None and key > after:
        yield _VisitedFolder(key, _found(folder, name, kind, {}, []))


def _names(folder: Location, key: Key, names_of: Callable[[Location], list[str]]) -> list[str]:
    """The names in a folder that are to be visited; none if it cannot be listed."""
    try:
        names = names_of(folder)
    except ReshardError as error:
        _pass_on(error, key)
        return []
    return [n for n in names if not n.startswith(".") and may_be_named(n)]


def _pass_on(error: ReshardError, key: Key) -> None:
    """Raises the error again if a bucket as a whole is at fault, so that a failure does not look like an empty folder.

    A folder below that the server's credentials may not list is left out.
    """
    if isinstance(error, StorageError) and error.fault and (error.fault != "forbidden" or not key):
        raise error


def _steps(folder: Location, key: Key) -> dict[int, str]:
    """The steps and their folders' or prefixes' names. A root itself has no path, so its folders are listed one by one."""
    if not key:
        return {}
    try:
        steps = committed_steps(folder)
    except ReshardError as error:
        _pass_on(error, key)
        return {}
    named = {step: name for step, name in steps.items() if may_be_named(name)}
    return {step: name for step, name in named.items() if _stays_inside(folder / name)}


def _format(folder: Location, key: Key) -> str | None:
    try:
        return committed_format(folder) if _stays_inside(folder) else None
    except ReshardError as error:  # gone, or not readable
        _pass_on(error, key)
        return None


def _stays_inside(place: Location) -> bool:
    """True if no file of a prefix is a link that leads out of its folder. Links in a folder are found when it is opened."""
    try:
        return place.local is None or place.is_folder() or bool(viewed(place))
    except ReshardError:
        return False


def _found(
    folder: Location, name: str, kind: str | None, steps: dict[int, str], versions: list[str]
) -> FoundCheckpoint | None:
    """A checkpoint, a folder of steps or of versions of weights, or both; None for any other folder."""
    if not (kind or steps or versions):
        return None
    try:
        modified = _modified_at(folder)
    except (OSError, OverflowError, ValueError):
        return None
    return FoundCheckpoint(
        path=name,
        kind=kind or ("steps" if steps else "versions"),
        steps=list(steps) or None,
        folders=list(steps.values()) or None,
        versions=versions or None,
        modified_at=modified,
    )


def _modified_at(place: Location) -> datetime | None:
    """Time of the last change of a local folder or of a prefix's files; None for a bucket, without folders. OSError if it is gone."""
    if place.local is None:
        return None
    files = files_of(place) or (place,)
    newest = max(Path(file.path).stat().st_mtime for file in files)
    return datetime.fromtimestamp(newest, UTC)
