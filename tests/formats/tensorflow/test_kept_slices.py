"""Slices of a TensorFlow source: kept over any number of conversions, or a warning says that they are not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import reshard

ROWS = np.arange(60, dtype=np.float32).reshape(10, 6)
SHARDS = {"partitions": [{"match": "w$", "fixed_shards": 3}]}
BOTH = {"mesh": {"x": 2, "y": 3}, "rules": [{"match": "w$", "axes": ["x", "y"]}]}
LOST = (
    "'w' is stored whole: its slices in the source are not even ones along one dimension, which are kept; say how it is to be cut, if it "
    "is (layout)"
)


def _source(folder: Path, layout: dict[str, Any], *, with_record: bool, dtype: str = "f4") -> Path:
    """A checkpoint of TensorFlow in slices; without a record, as TensorFlow itself writes them."""
    reshard.save(folder / "saved", {"w": ROWS.astype(dtype), "b": ROWS[0]})
    reshard.convert(folder / "saved", folder / "source", to="tensorflow", layout=layout)
    if not with_record:
        (folder / "source.slices.json").unlink()
    return folder / "source"


def _data_files(prefix: Path) -> int:
    return len(list(prefix.parent.glob(f"{prefix.name}.data-*")))


@pytest.mark.parametrize("with_record", [False, True])
def test_they_stay_over_conversions(tmp_path: Path, with_record: bool) -> None:
    prefix = _source(tmp_path, SHARDS, with_record=with_record)
    for name in ("second", "third", "fourth"):
        report = reshard.convert(prefix, tmp_path / name)
        prefix = tmp_path / name
        assert report.warnings == ()
        assert _data_files(prefix) == 3
        partition = reshard.inspect(prefix).tensors["w"].partition
        assert partition == {"strategy": "fixed_shards", "axis": 0, "shards": 3}
    assert (reshard.restore(prefix)["w"] == ROWS).all()


def test_those_of_two_dimensions_are_told_of(tmp_path: Path) -> None:
    prefix = _source(tmp_path, BOTH, with_record=False)
    assert _data_files(prefix) == 6
    report = reshard.convert(prefix, tmp_path / "whole")
    assert report.warnings == (LOST,)
    assert LOST in reshard.plan(prefix, to="tensorflow").warnings
    assert _data_files(tmp_path / "whole") == 1
    renamed = reshard.plan(prefix, to="tensorflow", rename={"^w$": "v"})
    assert LOST.replace("'w'", "'v'") in renamed.warnings


def test_where_the_layout_is_kept_or_given_nothing_is_told(tmp_path: Path) -> None:
    prefix = _source(tmp_path, BOTH, with_record=True)
    assert reshard.convert(prefix, tmp_path / "kept").warnings == ()
    assert _data_files(tmp_path / "kept") == 6
    bare = _source(tmp_path / "bare", BOTH, with_record=False)
    for layout in (SHARDS, {"mesh": {"x": 2}, "rules": [{"match": "w", "axes": [None, None]}]}):
        assert reshard.plan(bare, to="tensorflow", layout=layout).warnings == ()
    assert reshard.plan(bare, to="safetensors").warnings == ()


def test_of_a_dtype_that_is_stored_whole(tmp_path: Path) -> None:
    prefix = _source(tmp_path, SHARDS, with_record=False)
    assert reshard.plan(prefix, to="tensorflow", cast={"w": "float16"}).warnings == (
        "'w' (float16) is stored whole: TensorFlow cannot put slices of this dtype together",
    )
