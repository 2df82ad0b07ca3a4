"""Errors are also Python's own where they are the same: missing, forbidden, there already."""

from __future__ import annotations

import os
import pickle
from pathlib import Path

import numpy as np
import pytest

import reshard
from reshard.storage.local.files import storage_errors


def test_a_missing_checkpoint_is_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="does not exist: expected") as found:
        reshard.inspect(tmp_path / "none")
    assert isinstance(found.value, reshard.MissingError)


def test_a_missing_layout_file_is_a_missing_file(tmp_path: Path) -> None:
    reshard.save(tmp_path / "a", {"w": np.ones(2)})
    with pytest.raises(
        FileNotFoundError, match=r"layout file .* cannot be read: No such file"
    ) as found:
        reshard.convert(tmp_path / "a", tmp_path / "b", layout=tmp_path / "none.yaml")
    assert isinstance(found.value, reshard.MissingError)


def test_a_target_that_is_there_is_a_file_that_exists(tmp_path: Path) -> None:
    reshard.save(tmp_path / "a", {"w": np.ones(2)})
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "mine").write_text("kept")
    with pytest.raises(FileExistsError, match="exists already and was left untouched") as found:
        reshard.convert(tmp_path / "a", tmp_path / "b")
    assert isinstance(found.value, reshard.TargetExistsError)


def test_no_permission_is_a_permission_error() -> None:
    with (
        pytest.raises(PermissionError, match="cannot read 'x': Permission denied; ") as found,
        storage_errors("read", "x"),
    ):
        raise PermissionError(13, os.strerror(13))
    assert isinstance(found.value, reshard.ForbiddenError)
    assert type(pickle.loads(pickle.dumps(found.value))) is reshard.ForbiddenError


def test_an_error_that_says_what_is_wrong_is_not_worded_again() -> None:
    first = reshard.MissingError("nothing is there; check the path")
    with pytest.raises(reshard.MissingError) as found, storage_errors("read", "x"):
        raise first
    assert found.value is first
    assert str(first) == "nothing is there; check the path"
