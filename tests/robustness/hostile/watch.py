"""Notices every write outside of the folders that are allowed: before it happens, and afterwards."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_ONE_PATH = {
    "os.mkdir": 2,
    "os.remove": 1,
    "os.rmdir": 1,
    "os.truncate": None,
    "os.chmod": 2,
    "os.chown": 3,
    "os.utime": 3,
}
_TWO_PATHS = {"os.rename": (2, 3), "os.link": (2, 3), "os.symlink": (None, 2)}
_TOLERATED = ("/dev/null", "/proc/self/clear_refs")


class Watch:
    """An audit hook that records writes elsewhere; ``allowed`` may be changed from case to case.

    Attributes:
        outside: what was about to be written elsewhere.
    """

    def __init__(self) -> None:
        self.allowed: tuple[str, ...] = ()
        self.is_on = False
        self.outside: list[str] = []
        sys.addaudithook(self._hear)

    def _hear(self, event: str, args: tuple[Any, ...]) -> None:
        if not self.is_on:
            return
        if event == "open" and (
            (isinstance(args[1], str) and set(args[1]) & set("wax+")) or (args[2] or 0) & _WRITING
        ):
            self._check(event, args[0], None)
        elif event in _ONE_PATH:
            at = _ONE_PATH[event]
            self._check(event, args[0], args[at] if at is not None and at < len(args) else None)
        elif event in _TWO_PATHS:
            for path, at in zip(args[:2], _TWO_PATHS[event], strict=True):
                if at is not None:
                    self._check(event, path, args[at] if at < len(args) else None)

    def _check(self, event: str, path: Any, folder_fd: Any) -> None:
        if isinstance(path, int) or path is None:
            return
        real = _real(os.fsdecode(path), folder_fd)
        if real not in _TOLERATED and not any(
            real == a or real.startswith(f"{a}/") for a in self.allowed
        ):
            self.outside.append(f"{event} {real!a}")


def _real(path: str, folder_fd: Any) -> str:
    """The place that is written, the links above it followed, itself not."""
    if isinstance(folder_fd, int) and folder_fd >= 0:
        path = os.path.join(os.readlink(f"/proc/self/fd/{folder_fd}"), path)  # noqa: PTH115, PTH118  paths are text here
    head, tail = os.path.split(os.path.abspath(path))  # noqa: PTH100  paths are text here
    return os.path.join(os.path.realpath(head), tail)  # noqa: PTH118  paths are text here


def snapshot(root: Path, leave_out: Sequence[Path] = ()) -> dict[str, tuple[int, ...]]:
    """Kind, size, inode and times of everything below a folder; links are not followed."""
    found: dict[str, tuple[int, ...]] = {}
    for folder, folders, names in os.walk(root):
        folders[:] = [f for f in folders if Path(folder, f) not in leave_out]
        for name in [*folders, *names]:
            path = os.path.join(folder, name)  # noqa: PTH118  paths are text here
            if Path(path) in leave_out:
                continue
            status = os.lstat(path)
            found[path] = (status.st_mode, status.st_size, status.st_ino, status.st_mtime_ns)
    return found
