"""Plain file system calls for many small files, whose failures name what and where."""

from __future__ import annotations

import os
from pathlib import Path

from reshard.storage.local import storage_errors

_NEW = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | getattr(os, "O_CLOEXEC", 0)


def write_file(path: str, data: bytes | memoryview) -> None:
    """Write a whole file in place of what was there; nothing is synced."""
    with storage_errors("write", path):
        handle = os.open(path, _NEW, 0o666)
        try:
            view = memoryview(data).cast("B")
            while view.nbytes:
                view = view[os.write(handle, view) :]
        finally:
            os.close(handle)


def make_folder(path: str) -> None:
    """Make a folder, and those above it where they are missing; one that exists is fine."""
    with storage_errors("make the folder", path):
        try:
            os.mkdir(path)  # noqa: PTH102 - called a hundred thousand times, so no Path is made
        except FileExistsError:
            pass
        except FileNotFoundError:
            Path(path).mkdir(parents=True, exist_ok=True)
