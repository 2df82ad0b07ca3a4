"""The same conversion gives the same bytes, however many workers there are and in whatever order they end."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from reshard import api
from tests.orbax_trees import save_standard, save_v1, small_tree

LAYOUT = {
    "mesh": {"axes": ["x"], "shape": [8]},
    "rules": [{"match": "kernel", "axes": [None, "x"]}, {"match": "layers", "axes": ["x"]}],
}
TIMES = {"init_timestamp_nsecs", "commit_timestamp_nsecs"}


def content(path: Path) -> dict[str, bytes]:
    """Every file and folder, without the times in the checkpoint's metadata."""
    found = {
        str(p.relative_to(path)): p.read_bytes() if p.is_file() else b"folder"
        for p in path.rglob("*")
    }
    marked = json.loads(found["_CHECKPOINT_METADATA"])
    assert marked.keys() & TIMES
    timeless = {k: v for k, v in marked.items() if k not in TIMES}
    return {**found, "_CHECKPOINT_METADATA": json.dumps(timeless).encode()}


@pytest.mark.parametrize("save", [save_standard, save_v1])
@pytest.mark.parametrize("compression", ["none", "zstd", "keep"])
def test_the_same_bytes_with_one_worker_or_eight(save, compression, tmp_path):
    source = save(tmp_path / "source", small_tree())
    for name, workers in (("one", 1), ("again", 1), ("eight", 8)):
        api.convert(
            source,
            tmp_path / name,
            layout=LAYOUT,
            compression=compression,
            workers=workers,
            chunk_bytes=1024,
        )
    one, again, eight = (content(tmp_path / name) for name in ("one", "again", "eight"))
    assert one == again
    assert one == eight
