"""Lists the files of a step, to notice that a training run is deleting the step.

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
import stat
from dataclasses import dataclass, field
from pathlib import Path

from reshard.errors import StorageError
from reshard.formats.registry import files_of
from reshard.storage.location import locate

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

    files: dict[str, FileState] = field(default_factory=dict)
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
