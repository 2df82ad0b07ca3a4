"""The layout of the conversions on clusters, and what they write."""

from __future__ import annotations

from pathlib import Path

LAYOUT = {
    "mesh": {"axes": ["x"], "shape": [8]},
    "rules": [{"match": "kernel", "axes": ["x"]}, {"match": "big", "axes": [None, "x"]}],
}


def files_of(target: Path) -> dict[str, bytes]:
    """The content of every file below a folder, but for the time at which Orbax says that it wrote."""
    return {
        str(path.relative_to(target)): path.read_bytes()
        for path in sorted(target.rglob("*"))
        if path.is_file() and path.name != "_CHECKPOINT_METADATA"
    }
