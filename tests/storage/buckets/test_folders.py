"""Folders of a bucket that are looked through: each is listed once, and gives the answers that the bucket gives."""

from __future__ import annotations

import obstore
import pytest

import reshard
from reshard.errors import MissingError, StorageError
from reshard.formats.registry import committed_format
from reshard.storage.location import Location, locate
from tests.emulators.apis import error_answers as answers
from tests.emulators.buckets import Bucket
from tests.emulators.faults import Refuse
from tests.emulators.server import Options

STEP = ("_CHECKPOINT_METADATA", "_METADATA", "d/1", "commit_success.txt")


def put(bucket: Bucket, *keys: str) -> None:
    for key in keys:
        obstore.put(bucket.store(), key, b"{}", use_multipart=False)


@pytest.fixture
def run(bucket: Bucket) -> Location:
    """Steps 0 to 9; the last is not finished."""
    put(bucket, *(f"a/run/{step}/{name}" for step in range(9) for name in STEP))
    put(bucket, *(f"a/run/9/{name}" for name in STEP[:-1]))
    bucket.emulator.log.clear()
    return locate(f"{bucket.url}/a/run")


def test_the_same_answers(run: Location, bucket: Bucket) -> None:
    folders = run.remembered()
    for below in ("", "1", "1/_METADATA", "1/d", "1/d/1", "1/x", "1/_MET", "x/y/z", "9"):
        assert (folders / below).status() == (run / below).status(), below
    assert folders.entries() == run.entries()
    assert (folders / "1").entries() == (run / "1").entries()
    assert sorted(folders.files()) == sorted(run.files())
    assert (folders / "1" / "_METADATA").open().read(0, 9) == b"{}"
    assert Location(folders.store, "a").entries() == locate(f"{bucket.url}/a").entries()
    assert folders.view().files() is not None
    assert folders.remembered() == folders
    assert (str(folders), folders.traits.range_bytes) == (str(run), run.traits.range_bytes)
    with pytest.raises(MissingError, match=r"cannot list .*/a/run/x: nothing is there"):
        (folders / "x").entries()


def test_each_folder_is_listed_once(run: Location, bucket: Bucket) -> None:
    log = bucket.emulator.log
    folders = run.remembered()
    for _ in range(3):
        assert [committed_format(folders / name) for name in folders.folders()] == ["orbax"] * 9 + [
            None
        ]
    assert (log.count(), log.count("list")) == (11, 11)


@pytest.mark.usefixtures("run")
def test_steps_take_a_request_each(bucket: Bucket) -> None:
    assert list(reshard.steps(f"{bucket.url}/a/run")) == list(range(9))
    assert bucket.emulator.log.count() == 11
    bucket.emulator.log.clear()
    assert reshard.locate(f"{bucket.url}/a/run", step="latest") == f"{bucket.url}/a/run/8"
    assert bucket.emulator.log.count() < 25


@pytest.mark.usefixtures("run")
def test_what_is_above_is_not_listed(bucket: Bucket) -> None:
    """The credentials of a service may reach its own prefix only."""
    bucket.emulator.faults.add(
        Refuse(answers.ACCESS_DENIED), operation="list", key="a/", times=None
    )
    folder = locate(f"{bucket.url}/a/run").remembered()
    assert folder.is_folder()


def test_a_fault_is_no_answer(run: Location, bucket: Bucket) -> None:
    rule = bucket.emulator.faults.add(Refuse(answers.ACCESS_DENIED), operation="list", times=1)
    folders = run.remembered()
    with pytest.raises(StorageError, match="the credentials have no permission"):
        (folders / "1").is_folder()
    assert (rule.struck, (folders / "1").is_folder()) == (1, True)
    missing = locate("s3://no-such-bucket/run").remembered()
    if bucket.scheme == "s3":
        with pytest.raises(MissingError, match="there is no such bucket"):
            (missing / "1").is_folder()


def test_pages(run: Location, bucket: Bucket) -> None:
    bucket.emulator.options = Options(page_keys=4)
    assert len(run.remembered().folders()) == 10
    assert bucket.emulator.log.count() == 3


def test_a_whole_bucket(bucket: Bucket) -> None:
    obstore.put(bucket.store(), "x", b"1")
    folders = locate(bucket.url).remembered()
    assert [entry.name for entry in folders.entries()] == ["x"]
    assert (folders / "x").is_file()
    assert not (folders / "y").exists()
    assert folders.is_folder()
