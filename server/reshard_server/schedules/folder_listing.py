"""The files of a step's folder at one moment, compared with another moment.

A training run deletes a step in place, file by file, so a step that looks committed may have lost some of
its files. Two things give that away:

- between two listings something has gone;
- a folder changed after the newest file in it was written. Orbax writes ``commit_success.txt`` last and
  then renames, which changes no folder of the step; whoever adds a file makes that file the newest one.
"""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass, field
from pathlib import Path

SLACK_SECONDS = 0.1
"""How much later than its newest file a folder may have changed: it is earlier with Orbax, but for rounding."""


class GoneError(Exception):
    """A step that is not there, or not whole any more; the text says how that was seen."""


@dataclass(frozen=True, slots=True)
class File:
    """What tells a file from another one."""

    inode: int
    size: int
    modified_ns: int


@dataclass(frozen=True, slots=True)
class Listing:
    """What lies below a folder.

    Attributes:
        files: by their path below it.
        folders: when each was changed last, by its path below it; "" is the folder itself.
        odd: something in it that is neither a file nor a folder, such as a link; None for nothing.
    """

    files: dict[str, File] = field(default_factory=dict)
    folders: dict[str, int] = field(default_factory=dict)
    odd: str | None = None

    @property
    def written_ns(self) -> int:
        """When its newest file was written."""
        return max(file.modified_ns for file in self.files.values())

    @property
    def lost_files(self) -> bool:
        """Whether files were removed from it after the last one was written."""
        return max(self.folders.values()) > self.written_ns + SLACK_SECONDS * 1e9


def listing(root: Path) -> Listing:
    """Everything below a folder. Raises GoneError where it is not there, or vanishes meanwhile."""
    files: dict[str, File] = {}
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
                        files[path] = File(status.st_ino, status.st_size, status.st_mtime_ns)
                    else:
                        odd = path
    except (FileNotFoundError, NotADirectoryError) as error:
        raise GoneError("it was deleted before it could be read") from error
    if not files:
        raise GoneError("it is empty: it is being deleted")
    return Listing(files, folders, odd)


def check_whole(before: Listing, root: Path) -> None:
    """GoneError where something that was listed before is gone or another; what was added does no harm."""
    now = listing(root)
    if any(now.files.get(path) != file for path, file in before.files.items()):
        raise GoneError("files of it were deleted while it was looked at")
