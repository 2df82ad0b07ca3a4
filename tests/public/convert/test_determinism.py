"""The same conversion gives the same bytes with any workers, in any order."""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import reshard
from tests.campaigns import rarely, singly
from tests.checkpoint_files import files_without_times
from tests.orbax_trees import save_manager_items, save_pytree, save_standard, save_v1, small_tree

LAYOUT = {
    "mesh": {"axes": ["x"], "shape": [8]},
    "rules": [{"match": "kernel", "axes": [None, "x"]}, {"match": "layers", "axes": ["x"]}],
}


def convert_all(source: Path, folder: Path, **options: Any) -> set[str]:
    """Converts with one worker, again, with eight, and by another path; all must be alike.

    Returns the strategies that were taken.
    """
    link = folder / "link"
    link.symlink_to(source)
    runs = {
        "one": {"workers": 1},
        "again": {"workers": 1},
        "eight": {"workers": 8},
        "linked": {"workers": 3, "source": link},
        "pooled": {"workers": 3, "executor": "threads"},
    }
    strategies: set[str] = set()
    contents = {}
    for name, how in runs.items():
        report = _convert(source, folder / name, **{**options, **how})
        strategies |= {t.strategy for t in report.tensors}
        contents[name] = files_without_times(folder / name)
    assert [n for n, c in contents.items() if c != contents["one"]] == []
    return strategies


def _convert(given: Path, target: Path, *, source: Path | None = None, executor: str = "", **kw):
    if not executor:
        return reshard.convert(source or given, target, **kw)
    with ThreadPoolExecutor(3) as pool:
        return reshard.convert(source or given, target, executor=pool, **kw)


@pytest.mark.parametrize(
    ("save", "compression"),
    singly(
        [save_standard, save_v1, save_manager_items],
        ["none", "zstd", "zstd:7", "gzip", "blosc", "keep"],
    ),
)
def test_every_codec(save, compression, tmp_path):
    source = save(tmp_path / "source", small_tree())
    convert_all(source, tmp_path, layout=LAYOUT, compression=compression, chunk_bytes=1024)


@pytest.mark.parametrize("compression", ["none", "zstd"])
def test_casts(compression, tmp_path):
    """Also of numbers that do not fit, whose values numpy leaves open."""
    rng = np.random.default_rng(0)
    tree = {
        "kernel": (rng.normal(size=(64, 48)) * 1e12).astype(np.float32),
        "wide": rng.normal(size=(33, 17)).astype(np.float32),
        "nan": np.full((16, 16), np.nan, np.float32),
    }
    source = save_pytree(tmp_path / "source", tree)
    cast = {"kernel": "uint32", "wide": "bfloat16", "nan": "int8"}
    convert_all(
        source, tmp_path, layout=LAYOUT, cast=cast, compression=compression, chunk_bytes=1024
    )


def test_every_strategy(tmp_path):
    """Of whole chunks and short rows, of compressed and raw sources and targets."""
    rng = np.random.default_rng(0)
    tree = {
        "tall/kernel": rng.normal(size=(1024, 1024)).astype(np.float32),
        "flat/layers": rng.normal(size=(64, 64)).astype(np.float32),
        "same": np.zeros((16, 16), np.float32),
    }
    layout = {**LAYOUT, "mesh": {"axes": ["x"], "shape": [4]}}
    rows = {**layout, "rules": [{"match": ".", "axes": ["x"]}]}
    columns = {**layout, "rules": [{"match": ".", "axes": [None, "x"]}]}
    source = save_pytree(tmp_path / "source", tree)
    strategies: set[str] = set()
    for number, (first, second, kept, made) in enumerate(
        [
            (rows, columns, "zstd", "none"),
            (columns, rows, "none", "none"),
            (columns, rows, "zstd", "zstd"),
            (rows, rows, "zstd", "keep"),
        ]
    ):
        folder = tmp_path / str(number)
        folder.mkdir()
        reshard.convert(source, folder / "cut", layout=first, compression=kept)
        strategies |= convert_all(folder / "cut", folder, layout=second, compression=made)
    assert strategies == {"whole", "scatter", "weave", "block", "copy"}


@pytest.mark.parametrize("compression", rarely(["keep", "zstd", "none"], 2))
def test_threads_or_processes(compression, tmp_path):
    source = save_standard(tmp_path / "source", small_tree())
    convert = partial(reshard.convert, layout=LAYOUT, compression=compression, chunk_bytes=1024)
    convert(source, tmp_path / "threads")
    with ProcessPoolExecutor(2, get_context("spawn")) as executor:
        convert(source, tmp_path / "processes", executor=executor)
    assert files_without_times(tmp_path / "processes") == files_without_times(tmp_path / "threads")
