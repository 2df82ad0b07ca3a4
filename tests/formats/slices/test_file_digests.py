"""Digests of whole files, and which files a folder has."""

from __future__ import annotations

import os

import pytest
from awscrt.checksums import crc64nvme

from reshard.errors import CorruptError, FormatError, StorageError
from reshard.formats.slices.file_digests import (
    PIECE_BYTES,
    check_file,
    digest_of_file,
    digests_of_files,
    files_below,
)
from reshard.storage.location import locate


def test_a_digest_is_a_plain_crc_of_the_bytes(tmp_path):
    for size in (0, 1, PIECE_BYTES, PIECE_BYTES + 3):
        data = bytes(i % 251 for i in range(size))
        (tmp_path / "f").write_bytes(data)
        assert digest_of_file(locate(tmp_path / "f")) == f"{crc64nvme(data):016x}"
        assert digests_of_files(locate(tmp_path), ["f"]) == {"f": f"{crc64nvme(data):016x}"}


def test_what_is_no_plain_file_is_refused_without_waiting(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(FormatError, match="pipe should be a plain file, but is not"):
        digest_of_file(locate(tmp_path / "pipe"))
    with pytest.raises(StorageError, match=r"cannot read .*gone"):
        digest_of_file(locate(tmp_path / "gone"))


def test_every_file_is_listed_but_in_folders_left_out(tmp_path):
    for name in ("a/item/f", "item/f", "b"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"")
    (tmp_path / "link").symlink_to(tmp_path / "a")
    assert sorted(files_below(locate(tmp_path))) == ["a/item/f", "b", "item/f", "link"]
    assert sorted(files_below(locate(tmp_path), frozenset({"item"}))) == ["a/item/f", "b", "link"]


def test_a_file_that_is_not_what_was_recorded_is_named(tmp_path):
    (tmp_path / "f").write_bytes(b"x")
    check_file(locate(tmp_path / "f"), digest_of_file(locate(tmp_path / "f")), "the file")
    with pytest.raises(CorruptError) as caught:
        check_file(locate(tmp_path / "f"), "0" * 16, "the file")
    for text in (f"the file {tmp_path}/f has digest", f"but {'0' * 16} is recorded in slices.json"):
        assert text in str(caught.value)
    with pytest.raises(CorruptError, match=r"f2 is missing, but is recorded in slices\.json"):
        check_file(locate(tmp_path / "f2"), "0" * 16, "the file")
