"""A conversion by the workers of a Dask cluster: the bytes of one host, whatever happens to the workers."""

from __future__ import annotations

import os
import shutil
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import Executor, Future
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from distributed import Client

import reshard
from reshard.errors import CorruptError
from tests.campaigns import rarely
from tests.checkpoint_files import files_without_times
from tests.executors.dask_cluster import cluster
from tests.executors.held import HeldWork, begun, go

pytestmark = [pytest.mark.xdist_group("dask"), pytest.mark.timeout(180)]

LIMITS: dict[str, Any] = {"workers": 1, "max_memory": "128MiB"}
TARGETS: dict[str, dict[str, Any]] = {
    "plain": {"mesh": "data=2,model=4"},
    "safetensors": {"to": "safetensors", "file_bytes": "300KB"},
    "zstd": {"mesh": "data=2,model=4", "compression": "zstd", "chunk_bytes": "16KiB"},
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
def client(shared: Client) -> Client:
    """One with two workers: Dask starts one anew that was killed."""
    shared.wait_for_workers(2, timeout=60)
    return shared


def convert(source: Path, target: Path, client: Client, **options: Any) -> Any:
    """By workers that say that they do parts, as the page shows."""
    with client.get_executor(retries=3, resources={"reshard": 1}) as executor:
        given = {"parts": 6, **LIMITS, **options}
        return reshard.convert(source, target, executor=executor, **given)


def assert_as_on_one_host(source: Path, target: Path, **options: Any) -> None:
    """The bytes are those of one host, and nothing is beside the target."""
    assert [path.name for path in target.parent.iterdir()] == [target.name]
    alone = target.parent / "alone"
    reshard.convert(source, alone, **options, **LIMITS)
    assert files_without_times(target) == files_without_times(alone)


@pytest.mark.parametrize("kind", rarely([*TARGETS], 2))
def test_the_same_bytes_as_on_one_host(
    source: Path, client: Client, tmp_path: Path, kind: str
) -> None:
    report = convert(source, tmp_path / "served", client, **TARGETS[kind])
    assert len(report.tensors) == 24
    assert_as_on_one_host(source, tmp_path / "served", **TARGETS[kind])


class Holding(Executor):
    """An executor whose parts are held back in a folder."""

    def __init__(self, inner: Executor, notes: Path) -> None:
        self._inner, self._notes = inner, notes

    def submit(self, work: Any, /, name: str) -> Future[Any]:  # type: ignore[override]  # of one part
        return self._inner.submit(HeldWork(work, str(self._notes)), name)


@pytest.fixture
def notes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of parts that are held back."""
    return tmp_path_factory.mktemp("notes")


@pytest.mark.parametrize("kind", rarely([*TARGETS]))
def test_a_worker_that_is_killed_costs_only_time(
    source: Path, client: Client, notes: Path, tmp_path: Path, kind: str
) -> None:
    """It is killed within a part, which another worker resumes."""
    killed: list[str] = []

    def kill(_: reshard.Progress) -> None:
        if not killed and len(begun(notes)) == 2:
            name, pid = min(begun(notes).items())
            os.kill(pid, signal.SIGKILL)
            killed.append(name)
            go(notes)

    with client.get_executor(retries=3) as executor:
        given = {"parts": 6, "progress": kill, **LIMITS, **TARGETS[kind]}
        reshard.convert(source, tmp_path / "served", executor=Holding(executor, notes), **given)
    (name,) = killed
    assert not (notes / f"{name}.ended").exists()
    assert_as_on_one_host(source, tmp_path / "served", **TARGETS[kind])


def test_an_error_names_its_part_its_host_and_its_tensor(
    source: Path, client: Client, tmp_path: Path
) -> None:
    damaged = tmp_path / "damaged"
    shutil.copytree(source, damaged)
    files = [path for path in sorted((damaged / "layer_3.kernel").rglob("*")) if path.is_file()]
    largest = max(files, key=lambda path: path.stat().st_size)
    os.truncate(largest, largest.stat().st_size // 2)
    with pytest.raises(CorruptError, match=r"^part \d/6 on host '.*': tensor 'layer_3.kernel'"):
        convert(damaged, tmp_path / "t", client, mesh="data=2,model=4")
    assert not (tmp_path / "t").exists()


class StoppedError(Exception):
    """An error of a caller's own code."""


def test_a_run_that_is_stopped_waits_for_its_parts(
    source: Path, client: Client, notes: Path, tmp_path: Path
) -> None:
    """Dask calls a part cancelled that is at work, and lets it go on."""

    def stop(_: reshard.Progress) -> None:
        if len(begun(notes)) == 2:
            threading.Timer(1.0, go, [notes]).start()
            raise StoppedError

    target = tmp_path / "served"
    with client.get_executor(retries=3) as executor:
        given = {"parts": 6, "progress": stop, **LIMITS, **TARGETS["plain"]}
        with pytest.raises(StoppedError):
            reshard.convert(source, target, executor=Holding(executor, notes), **given)
        assert set(begun(notes)) <= {note.stem for note in notes.glob("*.ended")}
    report = convert(source, target, client, **TARGETS["plain"])
    assert report.resumed_bytes > 0
    assert_as_on_one_host(source, target, **TARGETS["plain"])
