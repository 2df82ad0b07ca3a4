"""Small reads of named versions are kept; others are read each time."""

from __future__ import annotations

from pathlib import Path

import pytest

from reshard.storage import calls
from reshard.storage.base import FileStatus
from reshard.storage.calls import read_part
from reshard.storage.location import Location, locate


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Location:
    monkeypatch.setattr(calls, "_READS", calls._RecentReads())
    (tmp_path / "f").write_bytes(b"0123456789")
    return locate(tmp_path / "f")


def change(file: Location) -> None:
    Path(file.path).write_bytes(b"abcdefghij")


def test_a_version_is_read_once(file: Location) -> None:
    found = FileStatus("file", 10, "v1")
    assert read_part(file, found, 2, 3) == b"234"
    change(file)
    assert read_part(file, found, 2, 3) == b"234"
    assert read_part(file, found, 2, 4) == b"cdef"
    assert read_part(file, FileStatus("file", 10, "v2"), 2, 3) == b"cde"


def test_without_a_version_it_is_read_each_time(file: Location) -> None:
    found = FileStatus("file", 10)
    assert read_part(file, found, 0, 2) == b"01"
    change(file)
    assert read_part(file, found, 0, 2) == b"ab"


def test_what_is_kept_is_bounded(file: Location, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "MOST_BYTES", 5)
    monkeypatch.setattr(calls, "_LARGEST_BYTES", 4)
    found = FileStatus("file", 10, "v1")
    parts = [(0, 3), (3, 2), (5, 2), (0, 5)]
    before = [read_part(file, found, *part) for part in parts]
    change(file)
    after = [read_part(file, found, *part) for part in reversed(parts)][::-1]
    assert before == [b"012", b"34", b"56", b"01234"]
    assert after == [b"abc", b"34", b"56", b"abcde"]  # the first was dropped, the last too long
