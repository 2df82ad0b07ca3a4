"""The disturbed cases: one small conversion for each strategy, and the other commands that use the seam."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

import reshard
from reshard.planning import strategies
from tests.checkpoint_files import files_of
from tests.orbax_trees import mesh, put, save_manager_items, save_pytree

TIMES = {"init_timestamp_nsecs", "commit_timestamp_nsecs"}
_OF_TIMES = re.compile(
    rb'"(_CHECKPOINT_METADATA|[^"]*slices\.json)": "[0-9a-f]{16}"|"crc64nvme": "[0-9a-f]{16}"}\n\Z'
)
"""Digests of files that hold times, or that hold such digests."""

LINE = {"mesh": {"axes": ["x"], "shape": [8]}}
ROWS = {**LINE, "rules": [{"match": "kernel", "axes": ["x"]}]}
COLUMNS = {**LINE, "rules": [{"match": "kernel", "axes": [None, "x"]}]}


def tree() -> dict[str, Any]:
    values = np.random.default_rng(0).normal(size=(64, 64)).astype(np.float32)
    line = mesh((8,), ("x",))
    return {
        "kernel": put(values, "x", on=line),
        "across": {"kernel": put(values[:32] * 2, None, "x", on=line)},
        "count": np.arange(5, dtype=np.int32),
        "name": "a string",
    }


def save_sources(root: Path) -> dict[str, Path]:
    """The tree as stock Orbax saves it: raw, compressed, in a database, and a step with other items."""
    return {
        "raw": save_pytree(root / "raw", tree(), use_ocdbt=False, use_compression=False),
        "zstd": save_pytree(root / "zstd", tree(), use_ocdbt=False, use_zarr3=True),
        "ocdbt": save_pytree(root / "ocdbt", tree()),
        "items/12": save_manager_items(root / "items", tree()),
    }


@dataclass(frozen=True, slots=True)
class Case:
    """Something to be done in a folder that holds the sources; what it makes is ``dst`` there.

    Attributes:
        strategy: the only one that plans may take, where there is a choice.
        is_ours: whether every byte of the target passes the seam, not TensorStore.
    """

    name: str
    source: str
    act: Callable[[Path, Path], object]
    strategy: str | None = None
    is_ours: bool = True

    def run(self, folder: Path) -> object:
        with only(self.strategy):
            return self.act(folder / self.source, folder / "dst")


def convert(**options: Any) -> Callable[[Path, Path], object]:
    settings = {"layout": ROWS, "chunk_bytes": 4096, "workers": 1, **options}
    return lambda source, target: reshard.convert(source, target, **settings)


def convert_files(**options: Any) -> Callable[[Path, Path], object]:
    """To safetensors, which cannot hold the string."""
    settings = {"to": "safetensors", "layout": ROWS, "drop": ["name"], "workers": 1, **options}
    return lambda source, target: reshard.convert(source, target, **settings)


def save(**options: Any) -> Callable[[Path, Path], object]:
    values = {
        "kernel": np.arange(1024, dtype=np.float32).reshape(32, 32),
        "other": {"bias": np.arange(7, dtype=np.int16)},
    }
    return lambda _, target: reshard.save(target, values, workers=1, **options)


CASES = (
    Case("scatter", "raw", convert(layout=COLUMNS), "scatter"),
    Case("scatter from ocdbt", "ocdbt", convert(layout=COLUMNS), "scatter"),
    Case("weave", "raw", convert(), "weave"),
    Case("block", "raw", convert(layout=COLUMNS), "block"),
    Case("whole", "zstd", convert(chunk_bytes=2048), "whole"),
    Case("zstd", "raw", convert(compression="zstd")),
    Case("cast", "ocdbt", convert(cast={"kernel": "bfloat16"})),
    Case("keep", "zstd", convert(compression="keep", chunk_bytes=2048)),
    Case("readback", "zstd", convert(check="readback")),
    Case("items", "items/12", convert()),
    Case("to ocdbt", "raw", convert(ocdbt=True), is_ours=False),
    Case("one file", "raw", convert_files(files="one"), "scatter"),
    Case("shards", "zstd", convert_files(files="shards", file_bytes=10_000)),
    Case("ranks", "raw", convert_files(files="ranks", check="readback")),
    Case("save", "raw", save()),
    Case("save zstd", "raw", save(compression="zstd")),
)


@contextmanager
def only(strategy: str | None) -> Iterator[None]:
    """Plans take this strategy wherever it is among the possible ones."""
    candidates = strategies.possible_reads

    def chosen(*arguments: Any) -> Iterator[Any]:
        found = list(candidates(*arguments))
        yield from [way for way in found if way.fills[0].strategy == strategy] or found

    with patch.object(strategies, "possible_reads", chosen):
        yield


def result(folder: Path) -> dict[str, bytes]:
    """What a case made, without the times in a checkpoint's metadata, and the digests of files that hold them."""
    return {n: _timeless(n, data) for n, data in files_of(folder / "dst").items()}


def _timeless(name: str, data: bytes) -> bytes:
    if name.endswith("_CHECKPOINT_METADATA"):
        document = json.loads(data)
        return json.dumps({k: v for k, v in document.items() if k not in TIMES}).encode()
    return _OF_TIMES.sub(b"", data) if name.endswith("slices.json") else data


def clear(folder: Path) -> None:
    """Removes what a case made."""
    if (folder / "dst").is_file():
        (folder / "dst").unlink()
    shutil.rmtree(folder / "dst", ignore_errors=True)
    shutil.rmtree(folder / ".dst.reshard-partial", ignore_errors=True)
