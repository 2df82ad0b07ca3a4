"""Conversions whose parts an executor schedules: the bytes of one run, and one error ends all parts."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

import reshard
from reshard.conversion.parts import on_executor
from reshard.conversion.parts.on_executor import PartWork
from reshard.engine import task_stream
from reshard.errors import (
    CorruptError,
    MissingError,
    PlanError,
    ReshardError,
    ResumeError,
    StorageError,
)
from reshard.storage.host import host_name
from tests.campaigns import rarely
from tests.public.parts.in_parts import LAYOUT, LIMITS, convert_part, files_of, names_in

RECORD = ".t.reshard-partial/parts/request"
STOP = ".t.reshard-partial/parts/stop"


@pytest.fixture(scope="module")
def processes() -> Iterator[Executor]:
    with ProcessPoolExecutor(2, get_context("spawn")) as executor:
        yield executor


@pytest.fixture
def threads() -> Iterator[Executor]:
    with ThreadPoolExecutor(3) as executor:
        yield executor


def convert(source: Path, target: Path, executor: Executor, parts: int = 4, **options: Any) -> Any:
    given = {"layout": LAYOUT, **LIMITS, **options}
    return reshard.convert(source, target, executor=executor, parts=parts, **given)


def assert_whole(trained: Path, target: Path, **options: Any) -> None:
    whole = target.parent / "whole"
    reshard.convert(trained, whole, layout=LAYOUT, **LIMITS, **options)
    assert files_of(target) == files_of(whole)
    assert [name for name in names_in(target.parent) if "reshard" in name] == []


@pytest.mark.parametrize(
    "options",
    rarely(
        [
            {"to": "safetensors", "file_bytes": "200KB"},
            {"compression": "zstd", "check": "readback"},
            {"cast": {"float": "bfloat16"}},
            {},
        ],
        2,
    ),
    ids=str,
)
def test_the_bytes_of_one_run(
    options: dict[str, Any], processes: Executor, trained: Path, tmp_path: Path
) -> None:
    told: list[reshard.Progress] = []
    report = convert(trained, tmp_path / "t", processes, progress=told.append, **options)
    whole = reshard.convert(trained, tmp_path / "whole", layout=LAYOUT, **LIMITS, **options)
    assert files_of(tmp_path / "t") == files_of(tmp_path / "whole")
    assert [t.target_digest for t in report.tensors] == [t.target_digest for t in whole.tensors]
    assert report.moved_bytes == whole.moved_bytes
    assert (report.source, report.target) == (str(trained), str(tmp_path / "t"))
    assert names_in(tmp_path) == ["t", "whole"]
    assert (told[-1].moved_bytes, told[-1].tasks_done) == (whole.moved_bytes, told[-1].tasks)
    again = convert(trained, tmp_path / "t", processes, **options)
    assert again.already_done


def test_several_targets(processes: Executor, trained: Path, tmp_path: Path) -> None:
    def targets(folder: Path) -> list[reshard.Target]:
        return [
            reshard.Target(folder / "a", layout=LAYOUT),
            reshard.Target(folder / "b", to="safetensors", cast={"float": "bfloat16"}),
        ]

    made = reshard.convert_all(
        trained, targets(tmp_path / "parts"), executor=processes, parts=5, **LIMITS
    )
    whole = reshard.convert_all(trained, targets(tmp_path / "whole"), **LIMITS)
    assert [r.moved_bytes for r in made.reports] == [r.moved_bytes for r in whole.reports]
    for name in "ab":
        assert files_of(tmp_path / "parts" / name) == files_of(tmp_path / "whole" / name)
    assert names_in(tmp_path / "parts") == ["a", "b"]


@pytest.mark.parametrize(("part_bytes", "count"), [(1, 18), (1 << 20, 5), (1 << 40, 1)])
def test_as_many_parts_as_hosts_and_bytes_are_worth(
    part_bytes: int, count: int, trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(on_executor, "PART_BYTES", part_bytes)
    targets = [reshard.Target(tmp_path / "t", layout=LAYOUT)]
    begun = reshard.begin_parts(trained, targets, hosts=3, **LIMITS)
    assert begun.parts == count


def test_a_cluster_with_other_hosts_resumes(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody gave a number of parts, and there are as many as there were."""
    monkeypatch.setattr(on_executor, "PART_BYTES", 1)
    targets = [reshard.Target(tmp_path / "t", layout=LAYOUT)]
    assert reshard.begin_parts(trained, targets, hosts=3, **LIMITS).parts == 18
    assert reshard.begin_parts(trained, targets, hosts=2, **LIMITS).parts == 18
    anew = [reshard.Target(tmp_path / "t", layout=LAYOUT, restart=True)]
    assert reshard.begin_parts(trained, anew, hosts=2, **LIMITS).parts == 12


def test_parts_that_make_no_sense(threads: Executor, trained: Path, tmp_path: Path) -> None:
    with pytest.raises(PlanError, match="parts is 100, but the conversion has 60 units of work"):
        convert(trained, tmp_path / "t", threads, parts=100)
    for wrong in (0, -1, True, "4"):
        with pytest.raises(PlanError, match=f"parts is {wrong!r}; expected a whole number"):
            convert(trained, tmp_path / "t", threads, parts=wrong)  # type: ignore[arg-type]  # it is wrong
    with pytest.raises(PlanError, match="parts is 4, but nothing is given that does them"):
        reshard.convert(trained, tmp_path / "t", parts=4)
    assert names_in(tmp_path) == []


class BadHost(ThreadPoolExecutor):
    """One thread, whose part ``number`` is changed before it begins."""

    def __init__(self, change: Callable[[PartWork], Any], number: int = 2) -> None:
        super().__init__(1)
        self._change, self._number = change, number
        self.begun: list[str] = []

    def submit(self, work: Any, /, name: str) -> Future[Any]:  # type: ignore[override]  # of one part
        return super().submit(self._do, work, name)

    def _do(self, work: PartWork, name: str) -> Any:
        self.begun.append(name)
        if name.startswith(f"{self._number}/"):
            work = self._change(work) or work
        return work(name)


def test_a_host_with_another_version_is_named(trained: Path, tmp_path: Path) -> None:
    def newer(_: PartWork) -> None:
        record = json.loads((tmp_path / RECORD).read_bytes())
        (tmp_path / RECORD).write_text(json.dumps({**record, "reshard": "9.9"}))

    with BadHost(newer) as executor, pytest.raises(ResumeError) as caught:
        convert(trained, tmp_path / "t", executor)
    assert str(caught.value).startswith(
        f"part 2/4 on host {host_name()!r}: reshard {reshard.__version__} is installed here, but the parts of '{tmp_path}/t' were begun "
        "with 9.9; install the same version on every host"
    )


def test_a_host_with_another_file_system_is_named(trained: Path, tmp_path: Path) -> None:
    def elsewhere(work: PartWork) -> PartWork:
        return replace(work, target=str(tmp_path / "elsewhere" / "t"))

    with BadHost(elsewhere) as executor, pytest.raises(MissingError) as caught:
        convert(trained, tmp_path / "t", executor)
    assert str(caught.value).startswith(
        f"part 2/4 on host {host_name()!r}: no conversion in parts is recorded beside '{tmp_path}/elsewhere/t': it was committed or "
        "removed, or this host does not share the file system of the target; begin one there (reshard convert --part), or give a path that "
        "all hosts share"
    )
    assert names_in(tmp_path) == [".t.reshard-partial"]


def test_a_source_that_changed_is_named(trained: Path, tmp_path: Path) -> None:
    source = tmp_path / "source"
    shutil.copytree(trained, source)
    with (
        BadHost(lambda _: (source / "new").touch()) as executor,
        pytest.raises(
            ResumeError, match=rf"^part 2/4 on host '{host_name()}': .*the source changed since"
        ),
    ):
        convert(source, tmp_path / "t", executor)
    assert not (tmp_path / "t").exists()


def test_an_error_of_a_part_names_its_tensor(
    processes: Executor, trained: Path, tmp_path: Path
) -> None:
    source = tmp_path / "source"
    shutil.copytree(trained, source)
    files = [path for path in sorted((source / "big_03").rglob("*")) if path.is_file()]
    largest = max(files, key=lambda path: path.stat().st_size)
    data = bytearray(largest.read_bytes())
    data[len(data) // 2] ^= 1
    largest.write_bytes(data)
    with pytest.raises(CorruptError, match=r"^part \d/4 on host '.*': tensor 'big_03'"):
        convert(source, tmp_path / "t", processes)
    assert not (tmp_path / "t").exists()


def test_after_an_error_the_others_end_before_they_plan(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    planned: list[Any] = []
    begin = PartsRequestRun(planned)
    monkeypatch.setattr("reshard.conversion.parts.request.PartsRequest.run", begin.run)

    def broken(_: PartWork) -> None:
        raise StorageError("the disk is gone")

    with BadHost(broken) as executor, pytest.raises(StorageError, match="the disk is gone"):
        convert(trained, tmp_path / "t", executor, parts=30)
    assert len(executor.begun) == 30
    assert len(planned) < 30
    assert (tmp_path / STOP).exists()
    before = changes_below(tmp_path)
    time.sleep(0.2)
    assert changes_below(tmp_path) == before


class PartsRequestRun:
    """Counts the parts that begin to plan."""

    def __init__(self, planned: list[Any]) -> None:
        from reshard.conversion.parts.request import PartsRequest

        usual = PartsRequest.run

        def run(request: Any, *arguments: Any) -> Any:
            planned.append(request)
            return usual(request, *arguments)

        self.run = run


def changes_below(folder: Path) -> dict[str, int]:
    return {str(path): path.lstat().st_ctime_ns for path in sorted(folder.rglob("*"))}


class StoppedError(Exception):
    """An error of a caller's own code."""


@pytest.mark.parametrize("error", [StoppedError, KeyboardInterrupt])
def test_a_run_that_is_stopped_ends_its_parts_and_is_resumed(
    error: type[BaseException],
    threads: Executor,
    trained: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(task_stream, "BATCH_TASKS", 1)
    monkeypatch.setattr("reshard.conversion.parts.watch.LOOK_S", 0.01)
    monkeypatch.setattr("reshard.conversion.parts.part.LOOK_S", 0.0)

    def stop(progress: reshard.Progress) -> None:
        if progress.tasks_done:
            raise error

    with pytest.raises(error):
        convert(trained, tmp_path / "t", threads, progress=stop)
    before = changes_below(tmp_path)
    assert not (tmp_path / "t").exists()
    time.sleep(0.2)
    assert changes_below(tmp_path) == before  # none goes on
    report = convert(trained, tmp_path / "t", threads)
    assert report.resumed_bytes > 0
    assert_whole(trained, tmp_path / "t")


class Stuck(Executor):
    """Parts that wait for a host that never comes, until they are cancelled."""

    def submit(self, *_: Any) -> Future[Any]:  # type: ignore[override]  # never called
        return Future()


def test_parts_that_wait_for_a_host_do_not_hold_up_the_end(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(on_executor, "STOP_S", 0.1)

    def stop(_: Any) -> None:
        raise StoppedError

    with pytest.raises(StoppedError):
        convert(trained, tmp_path / "t", Stuck(), progress=stop)


def test_starting_over(threads: Executor, trained: Path, tmp_path: Path) -> None:
    convert_part(trained, tmp_path / "t", "1/2")
    with pytest.raises(ResumeError, match="there were 2 parts and are 4"):
        convert(trained, tmp_path / "t", threads)
    report = convert(trained, tmp_path / "t", threads, restart=True)
    assert report.resumed_bytes == 0
    assert_whole(trained, tmp_path / "t")


def test_what_stops_the_commit_is_resumed(threads: Executor, trained: Path, tmp_path: Path) -> None:
    def stop(_: str) -> None:
        raise StoppedError

    with pytest.raises(StoppedError):
        convert(trained, tmp_path / "t", threads, before_publish=stop)
    assert not (tmp_path / "t").exists()
    convert(trained, tmp_path / "t", threads, before_publish=lambda _: None)
    assert_whole(trained, tmp_path / "t")


_KILLED = """
import os, signal, sys, reshard
from concurrent.futures import ThreadPoolExecutor
from reshard.conversion.parts import commit
from tests.public.parts.in_parts import LAYOUT, LIMITS
commit.RESULTS_AT_ONCE, left, take = 1, [5], commit.move_files_of_part
def killing(*words):
    left[0] -= 1
    if not left[0]:
        os.kill(os.getpid(), signal.SIGKILL)
    take(*words)
commit.move_files_of_part = killing
with ThreadPoolExecutor(3) as executor:
    reshard.convert(sys.argv[1], sys.argv[2], layout=LAYOUT, **LIMITS, executor=executor, parts=4)
"""
"""A conversion that is killed in the midst of its commit."""


def test_a_commit_that_is_killed_is_resumed(
    threads: Executor, trained: Path, tmp_path: Path
) -> None:
    words = [sys.executable, "-c", _KILLED, str(trained), str(tmp_path / "t")]
    assert subprocess.run(words, check=False).returncode == -signal.SIGKILL
    assert not (tmp_path / "t").exists()
    convert(trained, tmp_path / "t", threads)
    assert_whole(trained, tmp_path / "t")


@pytest.mark.parametrize("how", [{"cancel_futures": True}, {"cancel_futures": False}], ids=str)
def test_an_executor_that_is_shut_down_midway(
    how: dict[str, bool], trained: Path, tmp_path: Path
) -> None:
    class Ending(ThreadPoolExecutor):
        def submit(self, *words: Any) -> Future[Any]:  # type: ignore[override]  # no keywords
            if words[1].startswith("3/"):
                self.shutdown(wait=False, **how)
            return super().submit(*words)

    with pytest.raises(ReshardError, match=r"^the executor ended before its tasks did \("):
        convert(trained, tmp_path / "t", Ending(1))
    assert not (tmp_path / "t").exists()


def test_an_error_of_the_executors_own_kind(trained: Path, tmp_path: Path) -> None:
    """Dask raises KilledWorker, which is no BrokenExecutor."""

    class KilledWorkerError(Exception):
        __module__ = "distributed.scheduler"

    def lose(_: Any) -> None:
        raise KilledWorkerError("it attempted to run 'part' on 4 workers, which all died")

    with (
        BadHost(lose) as executor,
        pytest.raises(
            ReshardError,
            match=r"the executor gave a part up \(KilledWorkerError: it attempted to run",
        ),
    ):
        convert(trained, tmp_path / "t", executor)


def test_a_defect_of_the_program_is_itself(trained: Path, tmp_path: Path) -> None:
    def broken(_: Any) -> None:
        raise RuntimeError("no such thing")

    with BadHost(broken) as executor, pytest.raises(RuntimeError, match=r"^no such thing$"):
        convert(trained, tmp_path / "t", executor)
