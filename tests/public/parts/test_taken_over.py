"""A part that was presumed dead and lives on: another process takes it over, and the first one cannot change the target."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import reshard
from reshard.engine import task_stream
from reshard.errors import StorageError, TargetBusyError
from reshard.storage.buckets import lease as leases
from reshard.storage.buckets.lease import LeaseRecord
from reshard.storage.buckets.objects import put
from reshard.storage.buckets.transaction import bucket_of
from reshard.storage.location import locate
from reshard.storage.parts import Part, lock_part, part_root
from tests.public.parts.in_parts import LAYOUT, LIMITS, convert_part, files_of, names_in
from tests.storage.buckets.target.transactions import LATER

WAIT_S = 60.0


class Held:
    """A part in a thread, which waits after so many records until it is let go."""

    def __init__(self, run: Callable[..., Any], after: int) -> None:
        self._waits, self._go, self._after = threading.Event(), threading.Event(), after
        self._threads = ThreadPoolExecutor(1)
        self.ended: Future[Any] = self._threads.submit(run, progress=self._hold)
        assert self._waits.wait(WAIT_S), self.ended

    def _hold(self, progress: reshard.Progress) -> None:
        if progress.tasks_done >= self._after:
            self._waits.set()
            assert self._go.wait(WAIT_S)

    def go_on(self) -> None:
        self._go.set()
        self._threads.shutdown()


@pytest.fixture(autouse=True)
def single_tasks() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(task_stream, "BATCH_TASKS", 1)
        yield


def lose_lock(target: Path) -> None:
    """As where a host that cannot be reached loses its lock on a file system of the network."""
    (target.parent / f".{target.name}.reshard-partial/parts/00001-of-00001/lock").unlink()


def assert_whole(trained: Path, target: Path, **options: Any) -> None:
    reshard.commit(target)
    reshard.convert(trained, target.parent / "whole", layout=LAYOUT, **LIMITS, **options)
    assert files_of(target) == files_of(target.parent / "whole")
    assert names_in(target.parent) == ["t", "whole"]


@pytest.mark.parametrize(
    ("options", "after"),
    # Tasks of one file are recorded together.
    [({}, 7), ({"to": "safetensors", "file_bytes": "2MB"}, 30)],
    ids=["chunks", "files"],
)
def test_one_that_goes_on_after_the_other_is_done(
    options: dict[str, Any], after: int, trained: Path, tmp_path: Path
) -> None:
    target = tmp_path / "t"
    first = Held(lambda **hook: convert_part(trained, target, "1/1", **hook, **options), after)
    lose_lock(target)
    second = convert_part(trained, target, "1/1", **options)
    assert 0 < second.resumed_bytes < second.moved_bytes
    first.go_on()
    assert isinstance(first.ended.exception(), StorageError), first.ended
    assert_whole(trained, target, **options)


def test_one_that_goes_on_while_the_other_is_at_work(trained: Path, tmp_path: Path) -> None:
    target = tmp_path / "t"
    first = Held(lambda **hook: convert_part(trained, target, "1/1", **hook), after=7)
    lose_lock(target)
    second = Held(lambda **hook: convert_part(trained, target, "1/1", **hook), after=20)
    first.go_on()
    assert isinstance(first.ended.exception(), StorageError), first.ended
    with pytest.raises(reshard.ReshardError, match=r"part 1/1 of .* is at work now"):
        reshard.commit(target)
    second.go_on()
    second.ended.result()
    assert_whole(trained, target)


def test_one_that_goes_on_after_the_commit(trained: Path, tmp_path: Path) -> None:
    target = tmp_path / "t"
    first = Held(lambda **hook: convert_part(trained, target, "1/1", **hook), after=7)
    lose_lock(target)
    convert_part(trained, target, "1/1")
    reshard.commit(target)
    before = {path: path.stat() for path in sorted(target.rglob("*"))}
    first.go_on()
    assert isinstance(first.ended.exception(), StorageError), first.ended
    assert {path: path.stat() for path in sorted(target.rglob("*"))} == before
    assert names_in(tmp_path) == ["t"]


def test_in_a_bucket(trained: Path, s3_bucket: Any) -> None:
    """The lease is free, as where the first run was silent for so long that another took it."""
    target = f"{s3_bucket.url}/t"
    first = Held(lambda **hook: convert_part(trained, target, "1/1", **hook), after=7)
    free = LeaseRecord(target, LATER, "later", is_free=True)
    put(bucket_of(locate(target)), ".t.reshard-partial/parts/00001-of-00001/lease", free.render())
    second = convert_part(trained, target, "1/1")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(leases, "SURE_S", -1.0)  # the time has passed
        first.go_on()
    assert isinstance(first.ended.exception(), TargetBusyError), first.ended
    assert "this run lost" in str(first.ended.exception())
    assert second.moved_bytes > 0
    reshard.commit(target)
    names = [entry["path"] for page in s3_bucket.store().list() for entry in page]
    assert [name for name in names if "reshard" in name] == []
    assert reshard.verify(trained, target).differences == 0


def test_a_run_that_lost_its_root_removes_nothing_of_the_other(tmp_path: Path) -> None:
    target, part = locate(str(tmp_path / "t")), Part(1, 1)
    with lock_part(target, part, run="first") as first:
        first.begin({"of": "first"})
        Path(first.place, "lock").unlink()
        with lock_part(target, part, run="second") as second:
            second.begin({"of": "second"})
            assert second.root.path == part_root(target, part, "second")
            first.abort()
            second.append("a record")
            second.close()
            assert list(second.records()) == [b"a record"]
            assert Path(second.place, "lock").exists()
            second.abort()
            first.close()
