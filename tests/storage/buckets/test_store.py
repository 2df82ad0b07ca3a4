"""Buckets as stores of files: looked up, listed, viewed as one checkpoint's folder, read in ranges of one version."""

from __future__ import annotations

import multiprocessing
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import obstore
import obstore.exceptions
import pytest

from reshard.errors import MissingError, SourceChangedError, StorageError
from reshard.formats.registry import open_reader
from reshard.storage.base import Entry, FileStatus
from reshard.storage.buckets import file as bucket_file
from reshard.storage.buckets.file import equal_ranges
from reshard.storage.buckets.store import BYTES_PER_OBJECT
from reshard.storage.location import Location, locate, open_file
from tests.emulators.buckets import Bucket
from tests.orbax_trees import save_pytree
from tests.public.buckets.uploads import upload


def put(bucket: Bucket, **objects: bytes) -> None:
    for key, data in objects.items():
        obstore.put(bucket.store(), key, data, use_multipart=False)


@pytest.fixture
def run(bucket: Bucket) -> Location:
    put(bucket, **{"run/a/b": b"0123456789", "run/c": b"", "run2/d": b"x", "run/é?#%": b"odd"})
    return locate(f"{bucket.url}/run")


def test_what_is_there(run: Location, bucket: Bucket) -> None:
    assert run.status() == FileStatus("folder")
    found = (run / "a" / "b").status()
    assert found is not None
    assert (found.kind, found.nbytes) == ("file", 10)
    assert found.version == obstore.head(bucket.store(), "run/a/b")["e_tag"]
    assert (run / "c").status() == FileStatus("file", 0, (run / "c").status().version)
    assert not (run / "x").exists()
    assert run.entries() == [Entry("a", is_folder=True), Entry("c", is_folder=False), Entry("é?#%", is_folder=False)]  # fmt: skip
    assert sorted(run.files()) == ["a/b", "c", "é?#%"]
    assert locate(bucket.url).folders() == ["run", "run2"]
    assert locate(bucket.url).is_folder()


@pytest.mark.usefixtures("run")
def test_half_a_name_is_nothing(bucket: Bucket) -> None:
    half = locate(f"{bucket.url}/ru")
    assert half.status() is None
    assert list(half.files()) == []
    with pytest.raises(
        MissingError, match=r"cannot list .*/ru: nothing is there; check bucket and path"
    ):
        half.entries()
    assert not half.view().exists()
    with pytest.raises(MissingError, match="nothing is there"):
        half.view().entries()


def test_a_view_answers_from_one_listing(run: Location, bucket: Bucket) -> None:
    log = bucket.emulator.log
    log.clear()
    view = run.view()
    assert view.status() == FileStatus("folder")
    assert (view / "a").status() == FileStatus("folder")
    assert (view / "a" / "b").is_file()
    assert not (view / "x").exists()
    assert not (view / "a/b/c").exists()
    assert view.entries() == run.entries()
    assert (view / "a").entries() == [Entry("b", is_folder=False)]
    assert sorted(view.files()) == sorted(run.files())
    assert sorted((view / "a").files()) == ["b"]
    with pytest.raises(MissingError, match=r"the tree: cannot read .*/run/x: nothing is there"):
        (view / "x").open(what="the tree")
    log.clear()
    assert (view / "a/b").open().read(2, 5) == b"23456"
    assert log.counts() == {"get": 1}
    assert log.requests[0].headers["if-match"] == (run / "a/b").status().version


def test_a_view_looks_outside_of_its_folder_in_the_bucket(run: Location, bucket: Bucket) -> None:
    view = run.view()
    outside = Location(view.store, "run2/d")
    assert outside.is_file()
    assert outside.open().read(0, 1) == b"x"
    assert Location(view.store, "run2").entries() == [Entry("d", is_folder=False)]
    assert str(outside) == f"{bucket.url}/run2/d"


def test_a_view_of_one_object(run: Location) -> None:
    view = (run / "a/b").view()
    assert view.is_file()
    assert view.open().read(0, 99) == b"0123456789"
    assert list(view.state()) == list((run / "a/b").state())


def test_what_changes_after_the_listing_is_refused(run: Location, bucket: Bucket) -> None:
    view = run.view()
    file = (view / "a/b").open()
    put(bucket, **{"run/a/b": b"9876543210"})
    for read in file, pickle.loads(pickle.dumps(view / "a/b")).open():
        with pytest.raises(
            SourceChangedError,
            match=r"cannot read .*/run/a/b: the object changed after it was first looked at; run again once nobody",
        ):
            read.read(0, 4)
    obstore.delete(bucket.store(), "run/c")
    obstore.delete(bucket.store(), "run/a/b")
    with pytest.raises(
        SourceChangedError,
        match=r"/run/a/b changed while it was read: it was deleted after it was listed",
    ):
        file.fill(0, memoryview(bytearray(3)))


def test_an_open_file_keeps_to_the_version_that_it_read_first(
    run: Location, bucket: Bucket
) -> None:
    file = (run / "a/b").open()
    assert file.read(0, 3) == b"012"
    put(bucket, **{"run/a/b": b"9876543210"})
    with pytest.raises(SourceChangedError):
        file.read(3, 3)
    assert (run / "a/b").open().read(0, 3) == b"987"


@pytest.mark.parametrize("is_view", [False, True])
def test_reads_end_where_the_object_ends(run: Location, is_view: bool) -> None:
    root = run.view() if is_view else run
    for offset, nbytes, found in (0, 0, b""), (8, 5, b"89"), (10, 5, b""), (99, 5, b""), (0, 99, b"0123456789"):  # fmt: skip
        out = bytearray(nbytes)
        assert (root / "a/b").open().fill(offset, memoryview(out)) == len(found)
        assert out[: len(found)] == found
        assert (root / "a/b").open().read(offset, nbytes) == found
    assert (root / "c").open().read(0, 5) == b""


def test_a_large_read_is_several_requests_at_once(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bucket_file, "RANGE_BYTES", 1 << 20)
    data = np.random.default_rng(0).bytes((5 << 20) + 3)
    put(bucket, large=data)
    bucket.emulator.log.clear()
    file = locate(bucket.url).view()
    out = bytearray(len(data) + 7)
    assert (file / "large").open().fill(0, memoryview(out)) == len(data)
    assert out[: len(data)] == data
    assert bucket.emulator.log.counts() == {"list": 1, "get": 6}
    assert open_file(f"{bucket.url}/large").fill(5, memoryview(out)) == len(data) - 5
    assert out[: len(data) - 5] == data[5:]
    assert (file / "large").open().read(1, len(data)) == data[1:]


def test_ranges_are_nearly_equal() -> None:
    whole = bucket_file.RANGE_BYTES
    assert equal_ranges(0) == []
    assert equal_ranges(1) == [(0, 1)]
    assert equal_ranges(whole) == [(0, whole)]
    assert equal_ranges(whole + 1) == [(0, (whole + 1) // 2), ((whole + 1) // 2, whole + 1)]


def test_the_state_changes_with_any_object(run: Location, bucket: Bucket) -> None:
    before = list(run.state())
    assert [line.split("\0")[0] for line in before] == ["/a/b", "/c", "/é?#%"]
    assert list(run.view().state()) == before
    assert list(run.state(frozenset({"c", "a"}))) == before[2:]
    assert list((run / "a").state()) == [line.removeprefix("/a") for line in before[:1]]
    assert list((run.view() / "a").state()) == [line.removeprefix("/a") for line in before[:1]]
    assert list((run / "a/b").state()) == [before[0].removeprefix("/a/b")]
    assert list((run / "x").state()) == ["\0missing"]
    put(bucket, **{"run/c": b"y"})
    assert list(run.state()) != before


def test_empty_objects_that_mark_folders_are_folders(bucket: Bucket) -> None:
    bucket.emulator.objects  # noqa: B018 - the fake is needed: obstore drops the slash of a key
    raw = _put_raw(bucket, "run/", b"")
    _put_raw(bucket, "run/a/", b"")
    put(bucket, **{"run/a/b": b"1"})
    view = locate(f"{bucket.url}/run").view()
    assert raw == 200
    assert view.entries() == [Entry("a", is_folder=True)]
    assert (view / "a").status() == FileStatus("folder")
    assert sorted(view.files()) == ["a/b"]
    assert locate(f"{bucket.url}/run").entries() == [Entry("a", is_folder=True)]


def _put_raw(bucket: Bucket, key: str, data: bytes) -> int:
    """Puts an object whose key obstore would clean."""
    import urllib.request

    url = next(value for name, value in bucket.environment.items() if name.endswith("_URL"))
    request = urllib.request.Request(f"{url}/{bucket.name}/{key}", data, method="PUT")  # noqa: S310  an address of loopback
    with urllib.request.urlopen(request) as answer:  # noqa: S310  an address of loopback
        return int(answer.status)


@pytest.mark.parametrize("key", ["run/a//b", "run/../b"])
def test_an_object_whose_name_cannot_be_read(bucket: Bucket, key: str) -> None:
    _put_raw(bucket, key.replace("..", "%2E%2E"), b"x")
    with pytest.raises(
        StorageError,
        match=r"cannot list .*/run: the bucket has an object below it whose name has an empty part, '\.', '\.\.' or a control character; rename or delete that object",
    ):
        locate(f"{bucket.url}/run").view()


def test_a_listing_of_many_pages_takes_few_requests(bucket: Bucket) -> None:
    for number in range(30):
        put(bucket, **{f"run/{number:02}/c/0": b"x"})
    import msgspec

    bucket.emulator.options = msgspec.structs.replace(bucket.emulator.options, page_keys=10)
    bucket.emulator.log.clear()
    view = locate(f"{bucket.url}/run").view()
    assert len(view.folders()) == 30
    assert bucket.emulator.log.count("list") == 3


def _first_byte(url: str) -> bytes:
    return locate(url).open().read(0, 1)


def test_other_processes_make_clients_of_their_own(run: Location) -> None:
    assert _first_byte(f"{run}/a/b") == b"0"
    context: Any = multiprocessing.get_context("spawn")
    with context.Pool(1) as pool:
        assert pool.apply_async(_first_byte, (f"{run}/a/b",)).get(60) == b"0"


def test_a_forked_child_is_refused_instead_of_hanging(run: Location) -> None:
    """The threads of the client are missing in it."""
    assert _first_byte(f"{run}/a/b") == b"0"
    context: Any = multiprocessing.get_context("fork")
    with (
        context.Pool(1) as pool,
        pytest.raises(
            StorageError, match=r"this process was forked .* start worker processes with 'spawn'"
        ),
    ):
        pool.apply_async(_first_byte, (f"{run}/a/b",)).get(60)


def test_etags_without_quotes_are_those_with_them(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Azure lists them so."""
    put(bucket, **{"run/a": b"0123456789"})
    listed = obstore.list

    def unquoted(*args: Any, **options: Any) -> Any:
        for page in listed(*args, **options):
            yield [{**found, "e_tag": found["e_tag"].strip('"')} for found in page]

    monkeypatch.setattr(obstore, "list", unquoted)
    view = locate(f"{bucket.url}/run").view() / "a"
    assert view.open().read(0, 10) == b"0123456789"
    assert view.status() == locate(f"{bucket.url}/run/a").status()


def test_a_store_that_answers_nothing_behind_the_end(
    run: Location, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Azurite, to which obstore says what it wanted."""

    def refuse(*_: Any, **__: Any) -> None:
        raise obstore.exceptions.GenericError(
            "Generic MicrosoftAzure error: Wanted range starting at 10, but object was only 10 bytes long"
        )

    file = (run / "a/b").open()
    monkeypatch.setattr(obstore, "get", refuse)
    assert file.read(10, 10) == b""


def test_the_listing_of_a_view_counts_as_memory_of_the_open_checkpoint(
    bucket: Bucket, tmp_path: Path
) -> None:
    local = save_pytree(tmp_path / "saved", {"a": np.zeros(3), "b": np.zeros(4)})
    url = upload(bucket, local, "run/1")
    view = locate(url).view()
    assert view.traits.memory_bytes == BYTES_PER_OBJECT * len(list(view.files()))
    assert locate(url).traits.memory_bytes == 0
    assert (
        open_reader(url).metadata_bytes - open_reader(str(local)).metadata_bytes
        >= view.traits.memory_bytes
    )
