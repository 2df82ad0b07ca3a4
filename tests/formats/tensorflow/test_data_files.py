"""Data files of a TensorFlow target: for each shard, of a size, or one; TensorFlow reads them all."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import reshard
from reshard.errors import PlanError
from reshard.formats.tensorflow import write_files
from tests.oracles.oracle import Oracle

pytestmark = pytest.mark.xdist_group("tensorflow")

FOUR = {"partitions": [{"match": "table$", "fixed_shards": 4}]}
ONE_SLICE = 5 * 6 * 4
"""Bytes of the largest slice of the table, 17 x 6 of float32 in four."""


def table() -> np.ndarray:
    return np.random.default_rng(0).standard_normal((17, 6)).astype(np.float32)


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    kernel = np.random.default_rng(1).standard_normal((6, 5)).astype(np.float32)
    tree = {"model": {"table": table(), "kernel": kernel}, "save_counter": np.int64(1)}
    reshard.save(tmp_path / "saved", tree)
    return tmp_path / "saved"


def sizes(prefix: Path) -> list[int]:
    """Bytes of the data files, in order."""
    found = prefix.parent.glob(f"{prefix.name}.data-*")
    return [file.stat().st_size for file in sorted(found)]


CASES: dict[str, tuple[dict[str, Any], int]] = {
    "for each shard": ({"files": "ranks"}, 4),
    "one": ({"files": "one"}, 1),
    "of a size": ({"files": "shards", "file_bytes": 2 * ONE_SLICE}, 4),
    "of the usual size": ({"files": "shards"}, 1),
    "smaller than any slice": ({"file_bytes": 1}, 7),
}


@pytest.mark.parametrize("case", CASES)
def test_tensorflow_reads_them(case: str, saved: Path, tmp_path: Path, tensorflow: Oracle) -> None:
    options, count = CASES[case]
    made = tmp_path / "ckpt"
    reshard.convert(saved, made, to="tensorflow", layout=FOUR, **options)
    assert len(sizes(made)) == count
    *shards, kernel = tensorflow.ask("restored_shards", prefix=str(made), rows=[9, 8], columns=6)
    assert np.concatenate(shards).tobytes() == table().tobytes()
    assert kernel.nbytes == 120
    assert reshard.convert(saved, made, to="tensorflow", layout=FOUR, **options).already_done
    assert reshard.verify(saved, made).differences == 0
    assert reshard.inspect(made).tensors["model/table"].partition["shards"] == 4


def test_a_file_is_filled_up_to_its_size(saved: Path, tmp_path: Path) -> None:
    """The texts, here the graph of objects, are in the first file, however long they are."""
    made = tmp_path / "ckpt"
    reshard.convert(saved, made, to="tensorflow", layout=FOUR, file_bytes=2 * ONE_SLICE)
    graph, *filled = sizes(made)
    assert graph > 2 * ONE_SLICE
    assert max(filled) <= 2 * ONE_SLICE
    assert sum(filled) == 17 * 6 * 4 + 6 * 5 * 4 + 8


def test_strings_lie_behind_the_slices(tmp_path: Path, tensorflow: Oracle) -> None:
    prefix = tensorflow.ask("save_strings", folder=str(tmp_path))
    reshard.convert(prefix, tmp_path / "whole")
    wanted = tensorflow.ask("string_values", prefix=str(tmp_path / "whole"))
    assert len(wanted) == 5
    for options in ({}, {"files": "one"}, {"file_bytes": 100}):
        made = tmp_path / f"made{len(options)}{options.get('files')}"
        reshard.convert(prefix, made, **options)
        assert len(sizes(made)) == (1 if "file_bytes" not in options else 4)
        assert tensorflow.ask("string_values", prefix=str(made)) == wanted


def test_what_contradicts_is_refused(
    saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(**options: Any) -> str:
        with pytest.raises(PlanError) as caught:
            reshard.convert(saved, tmp_path / "ckpt", to="tensorflow", **options)
        return str(caught.value)

    assert refused(files="dcp") == (
        "files is 'dcp', which is a form of safetensors; TensorFlow has a data file for each shard ('ranks'), data files of a size "
        "('shards'), or one ('one'): ask for one of these (files)"
    )
    for files in ("one", "ranks"):
        assert refused(files=files, file_bytes=100) == (
            f"file_bytes is the size of shards, but files is {files!r}; leave it out (file_bytes)"
        )
    monkeypatch.setattr(write_files, "MOST_DATA_FILES", 3)
    assert refused(layout=FOUR) == (
        "the target would have 4 data files, and TensorFlow counts at most 3; ask for larger ones (file_bytes), for one (files), or for "
        "fewer shards (layout)"
    )
