"""Folders to be published, and obstacles in their place."""

from __future__ import annotations

import errno
import os
from pathlib import Path


def fill(root: Path, files: int = 2) -> None:
    (root / "folder").mkdir()
    for number in range(files):
        (root / "folder" / f"{number}").write_text("new")
    (root / "marker").write_text("new")


def names(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.iterdir())


def unsupported(*_: object) -> None:
    raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))


def appear(kind: str, target: Path) -> None:
    if kind == "file":
        target.write_text("old")
    elif kind == "link":
        target.symlink_to("elsewhere")
    else:
        target.mkdir()
        if kind == "folder":
            (target / "old").write_text("old")


def still_there(kind: str, target: Path) -> None:
    if kind == "link":
        assert target.readlink() == Path("elsewhere")
    elif kind == "file":
        assert target.read_text() == "old"
    else:
        assert names(target) == (["old"] if kind == "folder" else [])
