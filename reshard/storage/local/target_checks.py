"""Checks of a local target before a run: its path, its distance from sources and other targets, and names that are one there."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path, PurePath, PurePosixPath
from unicodedata import normalize

from reshard.errors import StorageError, TargetExistsError
from reshard.storage.local.files import storage_errors
from reshard.storage.local.store import LocalStore
from reshard.storage.location import Location


def refuse_overlap(target: Location, source: Location) -> None:
    """Refuses a target that is the source, contains it, or is inside it."""
    real_target, real_source = _real(target), _real(source)
    if real_target == real_source:
        raise StorageError(
            f"the target {_shown(target)} is the source itself; choose another target"
        )
    if real_source in real_target.parents:
        raise StorageError(
            f"the target {_shown(target)} is inside the source {_shown(source)}; choose a target outside of it"
        )
    if real_target in real_source.parents:
        raise StorageError(
            f"the source {_shown(source)} is inside the target {_shown(target)}; choose another target"
        )


def check_apart(targets: Sequence[Location]) -> None:
    """Refuses targets of one run that are equal, or inside one another."""
    real = [_real(target) for target in targets]
    for number, one in enumerate(real):
        for other in real[:number]:
            if one == other:
                raise StorageError(
                    f"the target {_shown(targets[number])} is given twice; give every target a folder of its own"
                )
            if one in other.parents or other in one.parents:
                inner, outer = (one, other) if other in one.parents else (other, one)
                shown = {real[at]: _shown(targets[at]) for at in range(number + 1)}
                raise StorageError(
                    f"the target {shown[inner]} is inside the target {shown[outer]}; choose targets that do "
                    "not contain one another"
                )


def _shown(place: Location) -> str:
    return repr(str(place))


def _real(place: Location) -> PurePath:
    """The path of a place without links; a URL as a path whose parents are the folders above it."""
    if not isinstance(place.store, LocalStore):
        return PurePosixPath(str(place))
    try:
        return Path(place.path).resolve()
    except RuntimeError:  # Python before 3.13
        raise StorageError(
            f"{place.path!r} leads through a symbolic link that leads to itself; remove the link"
        ) from None


def check_new_path(target: Path, *, overwrite: bool, is_file: bool = False) -> None:
    """Refuses a target that exists, unless it may be overwritten, or is an empty folder in place of a future folder."""
    is_empty = not is_file and is_empty_folder(target) and not _is_working_folder(target)
    if os.path.lexists(target) and not overwrite and not is_empty:
        raise target_exists(target)
    refuse_other_kind(target, is_file=is_file)
    _refuse_mount(target)
    _refuse_file_above(target)


def refuse_other_kind(target: Path, *, is_file: bool = False) -> None:
    """Refuses an existing target that is no folder, or with ``is_file`` no file; a link counts as neither."""
    with storage_errors("look at", target):
        try:
            mode = os.lstat(target).st_mode
        except FileNotFoundError:
            return
        except NotADirectoryError:
            return  # the error about the file above is clearer
    if is_file:
        if not stat.S_ISREG(mode):
            kind = "a symbolic link" if stat.S_ISLNK(mode) else "no plain file"
            raise TargetExistsError(
                f"the target {str(target)!r} is {kind} and was left untouched; a single file replaces only files: remove "
                "it, or choose another target"
            )
        return
    if not stat.S_ISDIR(mode):
        kind = "a symbolic link" if stat.S_ISLNK(mode) else "no folder"
        raise TargetExistsError(
            f"the target {str(target)!r} is {kind} and was left untouched; overwriting replaces only folders: "
            "remove it, or choose another target"
        )


def is_empty_folder(path: Path) -> bool:
    """True if an empty folder is there, not reached by a link."""
    with storage_errors("look at", path):
        try:
            if not stat.S_ISDIR(os.lstat(path).st_mode):
                return False
            with os.scandir(path) as entries:
                return next(entries, None) is None
        except (FileNotFoundError, NotADirectoryError):
            return False


def _is_working_folder(path: Path) -> bool:
    """True if it is the current folder: after replacing it, the caller's shell would be in a deleted folder."""
    try:
        return path.samefile(".")
    except OSError:
        return False


def _refuse_mount(target: Path) -> None:
    """Refuses a mount point: it cannot be replaced, and its parent is on another file system."""
    if os.path.ismount(target):
        raise TargetExistsError(
            f"the target {str(target)!r} is a mount point, which no rename can replace; name a folder in it, such as "
            f"{str(target / 'checkpoint')!r}"
        )


def _refuse_file_above(target: Path) -> None:
    with storage_errors("look at", target):
        above = next((p for p in target.parents if os.path.lexists(p)), None)
        is_below_file = above is not None and not above.is_dir()
    if is_below_file:
        raise StorageError(
            f"the target {str(target)!r} lies below {str(above)!r}, which should be a folder but is none; choose "
            "another target"
        )


def target_exists(target: Path) -> TargetExistsError:
    """The error, to be raised, for a target that exists already."""
    return TargetExistsError(
        f"the target {str(target)!r} exists already and was left untouched; choose another, or ask to overwrite it (overwrite)"
    )


_PROBE = ".reshard-names"


def refuse_folded(root: Location, paths: Iterable[str]) -> None:
    """Raises StorageError if the file system of a local folder treats two of the paths, or of the folders above them, as one.

    The file system is tried only if two of them could be treated as one.
    """
    pairs = list(_alike(paths)) if root.traits.renames else []
    if not pairs:
        return
    if (found := _taken_for_one(Path(root.path), pairs)) is not None:
        one, other = found
        raise StorageError(
            f"the file system of {root} takes {one!r} and {other!r} for one name, so that what is stored there would be mixed; "
            "write an OCDBT database (ocdbt) or safetensors (to), rename one (rename), or choose a target on another file system"
        )


def _alike(paths: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Paths, and folders above them, that differ in case or composition only: the first of each such group, and another."""
    seen: dict[str, str] = {}
    for path in paths:
        for inner in _with_parents(path):
            first = seen.setdefault(_folded(inner), inner)
            if first != inner:
                yield first, inner


def _with_parents(path: str) -> Iterator[str]:
    while path:
        yield path
        path = path.rpartition("/")[0]


def _folded(path: str) -> str:
    if path.isascii():
        return path.lower()
    return normalize("NFD", normalize("NFD", path).casefold())


def _taken_for_one(root: Path, pairs: Iterable[tuple[str, str]]) -> tuple[str, str] | None:
    """The first pair that is one name on the file system of a folder; it is tried in a temporary folder there."""
    probe = root / _PROBE
    with storage_errors("try names in", probe):
        shutil.rmtree(probe, ignore_errors=True)  # left by a killed run
        probe.mkdir(parents=True)
        try:
            for one, other in pairs:
                (probe / one).mkdir(parents=True, exist_ok=True)
                if _is_there(probe / other):
                    return one, other
        finally:
            shutil.rmtree(probe, ignore_errors=True)
    return None


def _is_there(path: Path) -> bool:
    return os.path.lexists(path)
