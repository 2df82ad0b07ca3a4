"""own_folder: a temporary folder of this process, such as that of a view. Those that killed processes left are removed."""

from __future__ import annotations

import fcntl
import os
import shutil
import time
import weakref
from contextlib import suppress
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory, gettempdir

PREFIX = "reshard-view-"

YOUNG_SECONDS = 60.0
"""A folder is locked right after it is made: a younger one may be between the two."""


def own_folder() -> TemporaryDirectory[str]:
    """A new temporary folder, which is locked as long as this object is there."""
    _remove_left()
    made = TemporaryDirectory(prefix=PREFIX)
    fd = os.open(made.name, os.O_RDONLY)
    weakref.finalize(made, os.close, fd)
    with suppress(OSError):  # a file system without locks keeps what is left
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    return made


@cache
def _remove_left() -> None:
    """Removes, once in a process, the folders that no process has locked."""
    for folder in Path(gettempdir()).glob(f"{PREFIX}*"):
        with suppress(OSError):  # another user's, or just removed
            fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if time.time() - os.fstat(fd).st_mtime > YOUNG_SECONDS:
                    shutil.rmtree(folder)
            finally:
                os.close(fd)
