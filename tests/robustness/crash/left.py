"""What a killed run left, and what became of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from reshard import api
from reshard.storage.staging import staging_for

TIMES = {"init_timestamp_nsecs", "commit_timestamp_nsecs"}


def content(path: Path) -> dict[str, bytes]:
    """Every file and folder, without the times in the checkpoint's metadata."""
    found = {
        str(p.relative_to(path)): p.read_bytes() if p.is_file() else b"folder"
        for p in path.rglob("*")
    }
    marked = json.loads(found["_CHECKPOINT_METADATA"])
    timeless = {k: v for k, v in marked.items() if k not in TIMES}
    return {**found, "_CHECKPOINT_METADATA": json.dumps(timeless).encode()}


def journal_of(target: Path) -> Path:
    return staging_for(target).journal


def journal_tasks(target: Path) -> list[Any]:
    """The tasks that the journal records, read without the code under test."""
    lines = journal_of(target).read_bytes().split(b"\n")[1:-1]
    return [task for line in lines for task in json.loads(line[9:])]


def same_result(found: Path, expected: Path, *, packed: bool) -> None:
    """Byte by byte the same folders; databases hold the same tensors."""
    if packed:
        assert api.verify(found, expected).differences == 0
        assert api.verify(found).differences == 0
    else:
        assert content(found) == content(expected)
