"""Keeps a step readable by hard links to its files, even if the training run deletes it meanwhile.

The links are in ``ROOT/.reshard-held/ID``, a folder that is made anew for each conversion; those of a prefix begin with its name there. They
share inodes, sizes and times with the step's files, so a killed conversion resumes from its journal as long as the links stay. Linking takes
moments and reading takes minutes; still, the step may be deleted just then, or may have lost files before. So it is
listed before and after; if the listings differ, the step is gone.

The links are synced before anything relies on them: after a power failure half of them would pass for the whole step.

A training run deletes a step in place, file by file, so a step that looks committed may have lost some of its files.
Two things show that:

- a later listing lacks something;
- a folder changed after the newest file in the step was written. Orbax writes ``commit_success.txt`` last and then
  renames the step, which changes none of its folders. A file that is added later is the newest file.

A step that is a prefix (``ckpt-7``) shares its folder with other steps, so the folder's times tell nothing about it. TensorFlow deletes
the index first, so all files were there if the index still is.
"""

from __future__ import annotations

import os
import shutil
import stat
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from reshard.errors import StorageError
from reshard.formats.known_formats import files_of
from reshard.storage.location import Location, locate
from reshard_server.auth.local_root import LINKS_FOLDER

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
        before = listing(step)
        if before.lost_files and not requested:
            raise GoneError(
                "some of its files were deleted after it was written; if that was intended, run this step by its number"
            )
        if before.odd is None:
            why = _link_files(before, step, at, stopping)
        else:
            odd = before.odd if before.is_prefix else f"{step.name}/{before.odd}"
            why = f"{odd} is neither a file nor a folder"
        check_whole(before, step)
        if not requested and time.time() - before.written_ns / 1e9 < 2 * SLACK_SECONDS:
            time.sleep(SETTLING_SECONDS)
            check_whole(before, step)
        is_linked = why is None
    finally:
        if not is_linked:
            remove_links(at)
    return why


def remove_links(at: Path) -> None:
    """Removes a folder of links, complete or not; the step's own files stay. Raises OSError if that fails.

    Another process may remove it at the same time.
    """
    folder = _folder_of(at)
    try:
        shutil.rmtree(folder)
    except (FileNotFoundError, NotADirectoryError):
        if folder.exists():
            shutil.rmtree(folder)


def _folder_of(at: Path) -> Path:
    """The folder of links at ``at``, or the folder of the links with that prefix."""
    for folder in (at, at.parent):
        if folder.parent.name == LINKS_FOLDER:
            return folder
    raise ValueError(f"{at} is not a folder of links")


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


SLACK_SECONDS = 0.1
"""Time by which a folder may be newer than the newest file, because of rounding."""


LOST_MEANWHILE = "some of its files were deleted while it was listed"
"""The sign of a step that the training run is deleting just then."""


class GoneError(Exception):
    """A step that was deleted, at least in part; the text has the sign of that."""


@dataclass(frozen=True, slots=True)
class FileState:
    """The state that identifies a file and its content."""

    inode: int
    size: int
    modified_ns: int


@dataclass(frozen=True, slots=True)
class Listing:
    """Everything below a folder, or every file whose name begins with a prefix and a dot.

    Attributes:
        files: by their path below the folder, or by the rest of the name after the prefix.
        folders: the time of each folder's last change, by its path; "" is the folder itself. Empty for a prefix.
        odd: an entry that is neither a file nor a folder, such as a link; None if there is none.
    """

    files: dict[str, FileState]
    folders: dict[str, int] = field(default_factory=dict)
    odd: str | None = None

    @property
    def is_prefix(self) -> bool:
        """True for the listing of a prefix."""
        return not self.folders

    def place(self, root: Path, path: str) -> Path:
        """The path of a file of the listing if the folder or the prefix is ``root``."""
        return root.with_name(f"{root.name}{path}") if self.is_prefix else root / path

    @property
    def written_ns(self) -> int:
        """Time of the newest file, in nanoseconds."""
        return max(file.modified_ns for file in self.files.values())

    @property
    def lost_files(self) -> bool:
        """True if files were removed after the newest file was written."""
        return max(self.folders.values(), default=0) > self.written_ns + SLACK_SECONDS * 1e9


def listing(root: Path) -> Listing:
    """Lists everything below a folder, or of a prefix. Raises GoneError if it is missing or vanishes meanwhile."""
    if (listed := _of_prefix(root)) is not None:
        return listed
    files: dict[str, FileState] = {}
    folders: dict[str, int] = {}
    odd, ahead = None, [""]
    try:
        while ahead:
            below = ahead.pop()
            folders[below] = (root / below).lstat().st_mtime_ns
            with os.scandir(root / below) as entries:
                for entry in entries:
                    path = f"{below}/{entry.name}" if below else entry.name
                    status = entry.stat(follow_symlinks=False)
                    if stat.S_ISDIR(status.st_mode):
                        ahead.append(path)
                    elif stat.S_ISREG(status.st_mode):
                        files[path] = FileState(status.st_ino, status.st_size, status.st_mtime_ns)
                    else:
                        odd = path
    except (FileNotFoundError, NotADirectoryError) as error:
        raise GoneError("it was deleted before it could be read") from error
    if not files:
        raise GoneError("it is empty: it is being deleted")
    return Listing(files, folders, odd)


def _of_prefix(prefix: Path) -> Listing | None:
    """The files of a prefix; None if no known file begins so."""
    try:
        needed = files_of(locate(prefix))
        if needed is None:
            return None
        with os.scandir(prefix.parent) as entries:
            found = [e for e in entries if e.name.startswith(f"{prefix.name}.") and not e.is_dir()]
        files, odd = dict[str, FileState](), None
        for entry in found:
            status = entry.stat(follow_symlinks=False)
            ending = entry.name.removeprefix(prefix.name)
            files[ending] = FileState(status.st_ino, status.st_size, status.st_mtime_ns)
            odd = odd if stat.S_ISREG(status.st_mode) else entry.name
    except (FileNotFoundError, StorageError) as error:
        raise GoneError(LOST_MEANWHILE) from error
    if not {file.name for file in needed} <= {entry.name for entry in found}:
        raise GoneError(LOST_MEANWHILE)
    return Listing(files, odd=odd)


def check_whole(before: Listing, root: Path) -> None:
    """Raises GoneError if a file that was listed before is gone or changed; new files are fine."""
    now = listing(root)
    if any(now.files.get(path) != file for path, file in before.files.items()):
        raise GoneError(LOST_MEANWHILE)
