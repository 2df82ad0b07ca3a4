"""Conversions on several hosts, which are threads here: budgets, durability, trust, and results that come twice."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import reshard
from reshard.engine import run, task_stream
from reshard.errors import StorageError
from reshard.storage.local.staging import staging_for
from tests.spread_executor import SpreadExecutor

LAYOUT = {"mesh": {"axes": ["x"], "shape": [8]}, "rules": [{"match": "w", "axes": [None, "x"]}]}


@pytest.fixture
def trained(tmp_path: Path) -> Path:
    rng = np.random.default_rng(3)
    tree = {f"w{n:02}": rng.standard_normal((64, 512)).astype(np.float32) for n in range(30)}
    reshard.save(tmp_path / "trained", tree)
    return tmp_path / "trained"


@pytest.fixture(autouse=True)
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(task_stream, "BATCH_TASKS", 1)


@pytest.fixture
def another_kernel(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Tasks find themselves on another host; the folders that they sync."""
    synced: list[str] = []
    real = run.sync_attempt

    def sync(folder: str) -> None:
        synced.append(folder)
        real(folder)

    monkeypatch.setattr(run, "this_kernel", lambda: ("worker-7", "another boot"))
    monkeypatch.setattr(run, "host_name", lambda: "worker-7")
    monkeypatch.setattr(run, "sync_attempt", sync)
    return synced


def files_of(target: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(target)): path.read_bytes()
        for path in sorted(target.rglob("*"))
        if path.is_file() and path.name != "_CHECKPOINT_METADATA"
    }


def convert(source: Path, target: Path, executor: Any = None, **options: Any) -> Any:
    return reshard.convert(source, target, layout=LAYOUT, workers=2, executor=executor, **options)


def test_each_host_gets_the_budget_and_the_workers(trained: Path, tmp_path: Path) -> None:
    with SpreadExecutor(3) as executor:
        convert(trained, tmp_path / "t", executor, max_memory="256MiB")
    ((max_memory, workers, processes),) = executor.opened
    assert (workers, processes) == (2, 0)
    assert 200 << 20 < max_memory <= 256 << 20


def test_tasks_of_the_own_kernel_are_synced_by_the_run(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "sync_attempt", lambda _: pytest.fail("not needed"))
    with SpreadExecutor() as executor:
        convert(trained, tmp_path / "t", executor)
    convert(trained, tmp_path / "alone")
    assert files_of(tmp_path / "t") == files_of(tmp_path / "alone")


def test_tasks_of_another_kernel_sync_what_they_wrote(
    trained: Path, tmp_path: Path, another_kernel: list[str]
) -> None:
    seen: list[Any] = []
    with SpreadExecutor() as executor:
        convert(trained, tmp_path / "t", executor, progress=seen.append)
    assert len(another_kernel) == len(set(another_kernel)) == executor.submitted == 30
    assert seen[-1].hosts == {"worker-7": seen[-1].total_bytes}
    convert(trained, tmp_path / "alone")
    assert files_of(tmp_path / "t") == files_of(tmp_path / "alone")


class StoppedError(Exception):
    pass


def interrupted(source: Path, target: Path, executor: Any, after: int) -> None:
    def stop(progress: Any) -> None:
        if progress.tasks_done == after:
            raise StoppedError

    with pytest.raises(StoppedError):
        convert(source, target, executor, progress=stop)


@pytest.mark.usefixtures("another_kernel")
def test_what_another_host_wrote_is_read_before_it_is_trusted(
    trained: Path, tmp_path: Path
) -> None:
    target = tmp_path / "t"
    with SpreadExecutor(1) as executor:
        interrupted(trained, target, executor, after=12)
    root = staging_for(target).root
    chunk = max((p for p in root.rglob("*") if p.is_file()), key=lambda p: p.stat().st_size)
    data = bytearray(chunk.read_bytes())
    data[100] ^= 1
    chunk.write_bytes(data)
    stages: set[str] = set()
    with SpreadExecutor(1) as executor:
        report = convert(trained, target, executor, progress=lambda p: stages.add(p.stage))
    assert "checking" in stages
    assert report.resumed_bytes == 10 * 64 * 512 * 4  # 11 were recorded, and one of them is damaged
    convert(trained, tmp_path / "alone")
    assert files_of(target) == files_of(tmp_path / "alone")


def test_what_the_own_kernel_wrote_is_not_read_again(trained: Path, tmp_path: Path) -> None:
    with SpreadExecutor(1) as executor:
        interrupted(trained, tmp_path / "t", executor, after=12)
        stages: set[str] = set()
        report = convert(trained, tmp_path / "t", executor, progress=lambda p: stages.add(p.stage))
    assert "checking" not in stages
    assert report.resumed_bytes == 11 * 64 * 512 * 4


class Twice(SpreadExecutor):
    """Carries each batch out twice, and gives what the first or the second one says."""

    def submit(self, work: Callable[..., Any], /, *arguments: Any) -> Future[Any]:
        def both(*arguments: Any) -> Any:
            results = [work(*arguments), work(*arguments)]
            self.submitted += 1
            return results[self.submitted % 2]

        return super().submit(both, *arguments)


class Doubled(SpreadExecutor):
    """Gives each result with all of its reads twice, as if two tasks had reported."""

    def submit(self, work: Callable[..., Any], /, *arguments: Any) -> Future[Any]:
        def doubled(*arguments: Any) -> Any:
            result = work(*arguments)
            return run.BatchResult(result.results * 2, result.attempts)

        return super().submit(doubled, *arguments)


@pytest.mark.parametrize("kind", [Twice, Doubled])
@pytest.mark.parametrize("options", [{}, {"to": "safetensors"}], ids=str)
def test_a_result_counts_once(
    kind: type[SpreadExecutor], options: dict[str, Any], trained: Path, tmp_path: Path
) -> None:
    with kind() as executor:
        convert(trained, tmp_path / "t", executor, **options)
    convert(trained, tmp_path / "alone", **options)
    assert files_of(tmp_path / "t") == files_of(tmp_path / "alone")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["alone", "t", "trained"]


def test_a_host_that_does_not_see_the_source_is_named(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from reshard.conversion import run

    def refuse(_: Any) -> str:
        raise StorageError("cannot list '/x': Permission denied; grant this user the permission")

    monkeypatch.setattr(run, "source_state", refuse)
    with (
        SpreadExecutor() as executor,
        pytest.raises(StorageError, match=r"^host 'host0': cannot list '/x': Permission denied"),
    ):
        convert(trained, tmp_path / "t", executor)


def test_a_host_that_writes_elsewhere_is_named(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from reshard.conversion import run

    monkeypatch.setattr(run, "begin_attempt", lambda _: "only-there")
    with (
        SpreadExecutor() as executor,
        pytest.raises(
            StorageError, match=r"host 'host0' writes to another file system at '.*attempts-"
        ),
    ):
        convert(trained, tmp_path / "t", executor)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["trained"]
