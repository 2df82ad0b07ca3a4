"""Targets that are refused before anything is written."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from reshard.errors import StorageError, TargetExistsError
from reshard.storage.location import locate
from reshard.storage.targets import check_place


def test_a_mount_point_is_refused_before_anything_is_written(tmp_path, monkeypatch):
    (tmp_path / "dst").mkdir()
    monkeypatch.setattr(os.path, "ismount", lambda path: Path(path) == tmp_path / "dst")
    for overwrite in (False, True):
        with pytest.raises(
            TargetExistsError, match="is a mount point, which no rename can replace"
        ):
            check_place(locate(tmp_path / "dst"), locate(tmp_path / "src"), overwrite=overwrite)


def test_target_may_be_beside_the_source_with_a_longer_name(tmp_path):
    (tmp_path / "step").mkdir()
    check_place(locate(tmp_path / "step2"), locate(tmp_path / "step"), overwrite=False)


def test_target_inside_the_source_by_way_of_a_link(tmp_path):
    (tmp_path / "src" / "in").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "src" / "in")
    with pytest.raises(StorageError, match="is inside the source"):
        check_place(locate(tmp_path / "link" / "dst"), locate(tmp_path / "src"), overwrite=False)


def test_target_below_a_link_that_leads_to_itself(tmp_path):
    (tmp_path / "link").symlink_to("link")
    with pytest.raises(StorageError, match="link"):
        check_place(locate(tmp_path / "link" / "dst"), locate(tmp_path / "src"), overwrite=False)
