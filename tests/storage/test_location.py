"""Locations on the local file system: looked up, listed, opened, viewed as one checkpoint's folder."""

from __future__ import annotations

import os
import pickle
from pathlib import Path

import pytest

from reshard.errors import FormatError, StorageError
from reshard.storage.base import Entry, FileStatus
from reshard.storage.location import join, locate, open_file


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "run" / "a").mkdir(parents=True)
    (tmp_path / "run" / "a" / "b").write_bytes(b"0123456789")
    (tmp_path / "run" / "c").write_bytes(b"")
    return tmp_path / "run"


def test_what_is_there(folder: Path) -> None:
    root = locate(str(folder))
    assert str(root) == str(folder)
    assert root.name == "run"
    assert str(root.parent) == str(folder.parent)
    assert root.status() == FileStatus("folder")
    assert (root / "a" / "b").status() == FileStatus("file", 10)
    assert (root / "a/b").is_file()
    assert not (root / "c" / "d").exists()
    assert not (root / "x").exists()
    assert root.entries() == [Entry("a", is_folder=True), Entry("c", is_folder=False)]
    assert root.folders() == ["a"]
    assert sorted(root.files()) == ["a/b", "c"]


def test_a_file_is_read_at_offsets(folder: Path) -> None:
    file = pickle.loads(pickle.dumps(locate(str(folder)) / "a/b")).open()
    out = bytearray(4)
    assert file.fill(3, memoryview(out)) == 4
    assert out == b"3456"
    assert file.fill(8, memoryview(out)) == 2
    assert file.read(8, 5) == b"89"
    assert file.read(10, 5) == b""
    file.close()
    file.close()
    assert open_file(f"{folder}/a/b").read(0, 2) == b"01"


def test_what_is_no_file_is_refused(folder: Path) -> None:
    os.mkfifo(folder / "pipe")
    root = locate(str(folder))
    assert (root / "pipe").status() == FileStatus("other")
    with pytest.raises(FormatError, match=r"the tree: .*/pipe should be a plain file, but is not"):
        (root / "pipe").open(what="the tree")
    with pytest.raises(
        StorageError, match=r"the tree: cannot read .*/x': No such file .* check the path"
    ):
        (root / "x").open(what="the tree")
    with pytest.raises(StorageError, match=r"cannot list .*/x'"):
        (root / "x").entries()


def test_a_view_refuses_links_that_lead_out(folder: Path) -> None:
    (folder.parent / "secret").write_text("secret")
    (folder / "out").symlink_to(folder.parent / "secret")
    (folder / "within").symlink_to(folder / "a" / "b")
    root = locate(str(folder)).view()
    assert (root / "within").open().read(0, 2) == b"01"
    for look in (root / "out").status, (root / "out").open:
        with pytest.raises(FormatError, match="a symbolic link to a place outside"):
            look()
    assert root.path == str(folder)


def test_the_state_changes_with_any_file(folder: Path) -> None:
    root = locate(str(folder))
    before = list(root.state())
    assert [line.split("\0")[0] for line in before] == ["/a/b", "/c"]
    assert list(root.state(frozenset({"c"}))) == before[:1]
    os.utime(folder / "c", ns=(5, 5))
    assert list(root.state()) != before
    assert list((root / "x").state()) == ["\x002"]


def test_a_url_without_a_slash_makes_no_folder() -> None:
    with pytest.raises(StorageError) as refused:
        locate("s3:/bucket/key")
    assert str(refused.value) == (
        "'s3:/bucket/key' is no URL, since a slash is missing; write s3://bucket/key, or ./s3:/bucket/key for a folder of that name"
    )
    assert locate("./s3:/bucket").path.endswith("/s3:/bucket")


def test_other_schemes_are_refused() -> None:
    with pytest.raises(
        StorageError,
        match=r"ftp:// is not supported; give a local path, or a URL that begins with gs://, s3:// or az://",
    ):
        locate("ftp://host/a")


def test_joining() -> None:
    assert join("a", "b/c") == "a/b/c"
    assert join("a/", "b") == "a/b"
    assert join("", "b") == "b"
    assert join("a", "") == "a"
    assert join("/", "a") == "/a"


def test_a_link_to_a_folder_is_listed_as_one(folder: Path) -> None:
    (folder / "link").symlink_to(folder / "a")
    (folder / "loop").symlink_to("loop")
    root = locate(str(folder))
    assert root.entries()[2:] == [
        Entry("link", is_folder=True, is_link=True),
        Entry("loop", is_folder=False, is_link=True),
    ]
    assert root.folders() == ["a"]
    assert sorted(root.files()) == ["a/b", "c", "link", "loop"]


def test_a_snapshot_of_huggingface_hub_leads_to_its_blobs_only(tmp_path: Path) -> None:
    for name in "models--a--b/blobs", "models--a--b/snapshots/1/deep", "plain/blobs":
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "models--a--b" / "blobs" / "hash").write_bytes(b"weights")
    (tmp_path / "plain" / "blobs" / "hash").write_bytes(b"weights")
    snapshot = tmp_path / "models--a--b" / "snapshots" / "1"
    for place in snapshot, snapshot / "deep":
        (place / "file").symlink_to(tmp_path / "models--a--b" / "blobs" / "hash")
    (snapshot / "other").symlink_to(tmp_path / "plain" / "blobs" / "hash")
    view = locate(str(snapshot)).view()
    assert (view / "file").open().read(0, 7) == b"weights"
    assert (view / "deep/file").open().read(0, 7) == b"weights"
    for root, name in (view, "other"), (locate(str(snapshot / "deep")).view(), "file"):
        with pytest.raises(FormatError, match="a symbolic link to a place outside"):
            (root / name).status()


def test_paths_become_absolute(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    assert str(locate("a/b")) == str(folder / "a" / "b") == str(locate(f"file://{folder}/a/b/"))
