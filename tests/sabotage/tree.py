"""A copy of the tree in a temporary folder, which is changed in place of the user's."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.sabotage.sabotage import Sabotage

ROOT = Path(__file__).parents[2]


@contextmanager
def copied_tree() -> Iterator[Path]:
    """The root of a copy of all files that git tracks or would track; removed at the end."""
    with tempfile.TemporaryDirectory(prefix="reshard-sabotage-") as folder:
        root = Path(folder)
        for name in _files():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, root / name, follow_symlinks=False)
        yield root


def _files() -> list[str]:
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    found = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    return [name for name in found.stdout.split("\0") if os.path.lexists(ROOT / name) and name]


@contextmanager
def sabotaged(root: Path, sabotage: Sabotage) -> Iterator[None]:
    """The copy has the defect in the block."""
    path = root / sabotage.file
    before, times = path.read_bytes(), path.stat()
    path.write_text(sabotage.applied(root), "utf-8")
    try:
        yield
    finally:
        path.write_bytes(before)
        # Compiled files are known by the time of their source: this one is not that of the defect.
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
