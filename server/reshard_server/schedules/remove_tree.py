"""Removes a folder with everything in it."""

from __future__ import annotations

import shutil
from pathlib import Path


def remove_tree(folder: Path) -> None:
    """Removes a folder, if it is there; another process may do so at the same time.

    Raises OSError where it cannot be removed.
    """
    try:
        shutil.rmtree(folder)
    except (FileNotFoundError, NotADirectoryError):
        if folder.exists():
            shutil.rmtree(folder)
