"""The bytes of checkpoints, file by file, to be compared."""

from __future__ import annotations

import json
from pathlib import Path

TIMES = {"init_timestamp_nsecs", "commit_timestamp_nsecs"}


def files_of(path: Path) -> dict[str, bytes]:
    """The bytes of every file below a folder, and ``b"folder"`` for every folder; those of a single file by "".

    Of several files that begin with a name their endings count.
    """
    if path.is_file():
        return {"": path.read_bytes()}
    if not path.exists():
        return {
            p.name.removeprefix(path.name): p.read_bytes()
            for p in path.parent.glob(f"{path.name}.*")
        }
    return {
        str(p.relative_to(path)): p.read_bytes() if p.is_file() else b"folder"
        for p in path.rglob("*")
    }


def files_without_times(path: Path) -> dict[str, bytes]:
    """As ``files_of``, without the times in an Orbax checkpoint's metadata, which no two runs share."""
    found = files_of(path)
    if not any(name.endswith("_METADATA") for name in found):
        assert found
        return found
    marked = json.loads(found["_CHECKPOINT_METADATA"])
    assert marked.keys() & TIMES
    timeless = {k: v for k, v in marked.items() if k not in TIMES}
    return {**found, "_CHECKPOINT_METADATA": json.dumps(timeless).encode()}
