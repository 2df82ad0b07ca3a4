"""A conversion by the workers of a Dask cluster: the bytes of one host, whatever happens to the workers."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from distributed import Client

import reshard
from reshard.engine import task_stream
from tests.campaigns import rarely
from tests.checkpoint_files import files_without_times
from tests.executors.dask_cluster import BUDGET, cluster, hold_back

pytestmark = pytest.mark.xdist_group("dask")

WAIT_S = 120.0
TARGETS: dict[str, dict[str, Any]] = {
    "plain": {"mesh": "data=2,model=4"},
    "zstd": {"mesh": "data=2,model=4", "compression": "zstd", "chunk_bytes": "16KiB"},
    "safetensors": {"to": "safetensors", "file_bytes": "300KB"},
}


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twelve matrices and vectors on a mesh of eight devices, in chunks of their own."""
    rng = np.random.default_rng(7)
    layout = reshard.LayoutMap(reshard.DeviceMesh((4, 2), ("data", "model")))
    layout["kernel"] = ("data", "model")
    tree = {
        f"layer_{n}": {
            "kernel": rng.normal(size=(128, 256)).astype(np.float32),
            "bias": rng.normal(size=256).astype(np.float32),
        }
        for n in range(12)
    }
    path = tmp_path_factory.mktemp("dask") / "trained"
    reshard.save(path, tree, layout, compression="zstd")
    return path


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    with cluster(tmp_path_factory.mktemp("workers")) as client:
        yield client


@pytest.fixture
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    """One whose workers a test may kill or change."""
    with cluster(tmp_path_factory.mktemp("workers")) as client:
        yield client


@pytest.fixture
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a small checkpoint makes many batches."""
    monkeypatch.setattr(task_stream, "BATCH_TASKS", 1)


def assert_as_on_one_host(source: Path, target: Path, **options: Any) -> None:
    """The bytes are those of one host, and nothing is beside the target."""
    assert [path.name for path in target.parent.iterdir()] == [target.name]
    alone = target.parent / "alone"
    reshard.convert(source, alone, **options, **BUDGET)
    assert files_without_times(target) == files_without_times(alone)


@pytest.mark.parametrize("options", TARGETS.values(), ids=TARGETS)
def test_the_same_bytes_as_on_one_host(
    source: Path, shared: Client, tmp_path: Path, options: dict[str, Any]
) -> None:
    with shared.get_executor(retries=3) as executor:
        report = reshard.convert(
            source, tmp_path / "served", **options, **BUDGET, executor=executor
        )
    assert len(report.tensors) == 24
    assert_as_on_one_host(source, tmp_path / "served", **options)


@pytest.mark.usefixtures("small_batches")
@pytest.mark.parametrize("options", rarely([*TARGETS.values()]), ids=TARGETS)
def test_a_worker_that_is_killed_costs_only_time(
    source: Path, client: Client, tmp_path: Path, options: dict[str, Any]
) -> None:
    """It is killed within a batch, which another worker then carries out."""
    notes = tmp_path / "notes"
    notes.mkdir()
    hold_back(client, notes)
    target = tmp_path / "made" / "served"
    killed: list[int] = []

    def kill_one(_: reshard.Progress) -> None:
        if not killed:
            killed.append(await_begun(notes))
            os.kill(killed[0], signal.SIGKILL)
            (notes / "go").touch()

    with client.get_executor(retries=3) as executor:
        reshard.convert(source, target, **options, **BUDGET, executor=executor, progress=kill_one)
    assert unfinished(notes) == {f"{killed[0]}-2"}
    assert_as_on_one_host(source, target, **options)


class StoppedError(Exception):
    """What stops a run from within its progress."""


@pytest.mark.usefixtures("small_batches")
@pytest.mark.parametrize("kind", rarely([*TARGETS]))
def test_tasks_that_go_on_after_their_run_write_nothing(
    source: Path, client: Client, tmp_path: Path, kind: str
) -> None:
    """Dask calls a running task cancelled, and lets it go on: here until a later run is in its midst."""
    notes = tmp_path / "notes"
    notes.mkdir()
    target = tmp_path / "made" / "served"

    hold_back(client, notes)

    def stop(_: reshard.Progress) -> None:
        await_begun(notes)
        raise StoppedError

    with pytest.raises(StoppedError), client.get_executor(retries=3) as executor:
        reshard.convert(source, target, **TARGETS[kind], **BUDGET, executor=executor, progress=stop)

    def let_go(_: reshard.Progress) -> None:
        (notes / "go").touch()
        deadline = time.monotonic() + WAIT_S
        while left := unfinished(notes):
            assert time.monotonic() < deadline, left
            time.sleep(0.01)

    later = {**TARGETS["plain"], "cast": {"float": "bfloat16"}}
    reshard.convert(source, target, **later, **BUDGET, restart=True, progress=let_go)
    ended = [note.read_text() for note in notes.glob("*.ended")]
    assert ended
    assert "done" not in ended
    assert_as_on_one_host(source, target, **later)


def await_begun(notes: Path) -> int:
    """The process of a batch that has begun and is held back."""
    deadline = time.monotonic() + WAIT_S
    while not (begun := sorted(notes.glob("*.begun"))):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return int(begun[0].stem.partition("-")[0])


def unfinished(folder: Path) -> set[str]:
    """Tasks that have begun and not ended."""
    begun, ended = ({note.stem for note in folder.glob(f"*.{word}")} for word in ("begun", "ended"))
    return begun - ended
