"""Conversions on a real Ray cluster of three local nodes: same bytes as one host, whatever is killed."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import BrokenExecutor
from pathlib import Path
from typing import Any

import pytest

import reshard
from reshard.conversion.parts import on_executor
from reshard.errors import CorruptError, MissingPackageError, PlanError, ReshardError
from reshard.executors import ray as module
from reshard.executors.ray import RayExecutor
from reshard.storage.host import host_name
from tests.campaigns import campaign, rarely
from tests.executors.cluster import NODE, processes_of, send, until, workers
from tests.executors.held import HeldWork, begun, go
from tests.executors.trees import LAYOUT, files_of

pytestmark = [pytest.mark.xdist_group("ray"), pytest.mark.timeout(180)]

Alone = Callable[..., dict[str, bytes]]
LIMITS = {"max_memory": "256MiB", "workers": 2}


def convert(source: Path, target: Path | str, cluster: Any, **options: Any) -> Any:
    given = {"layout": LAYOUT, "parts": 6, **LIMITS, **options}
    environment = given.pop("environment", None)
    with RayExecutor(cluster.address, environment=environment) as executor:
        return reshard.convert(source, target, executor=executor, **given)


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize(
    "options",
    rarely(
        [
            {"compression": "zstd"},
            {"to": "safetensors", "files": "ranks"},
            {},
            {"compression": "keep"},
            {"cast": {"float": "bfloat16"}},
            {"to": "safetensors"},
        ],
        2,
    ),
    ids=str,
)
def test_three_hosts_write_what_one_writes(
    options: dict[str, Any], trained: Path, alone: Alone, cluster: Any, tmp_path: Path
) -> None:
    told: list[reshard.Progress] = []
    convert(trained, tmp_path / "t", cluster, progress=told.append, **options)
    assert files_of(tmp_path / "t") == alone(**options)
    assert names_in(tmp_path) == ["t"]
    assert told[-1].moved_bytes == told[-1].total_bytes


def test_several_targets(trained: Path, alone: Alone, cluster: Any, tmp_path: Path) -> None:
    targets = [
        reshard.Target(tmp_path / "a", layout=LAYOUT, compression="zstd"),
        reshard.Target(tmp_path / "b", layout=LAYOUT, to="safetensors", files="ranks"),
    ]
    with RayExecutor(cluster.address) as executor:
        assert executor.hosts == 3
        reshard.convert_all(trained, targets, executor=executor, parts=5, **LIMITS)
    assert files_of(tmp_path / "a") == alone(compression="zstd")
    assert files_of(tmp_path / "b") == alone(to="safetensors", files="ranks")
    assert names_in(tmp_path) == ["a", "b"]


def command(folder: Path, source: Path, *words: str) -> subprocess.Popen[str]:
    """``reshard convert`` to the target ``t`` in a folder, in a process of its own."""
    layout = folder / "layout.json"
    layout.write_text(json.dumps(LAYOUT))
    given = [str(source), str(folder / "t"), "--layout", str(layout), "--max-memory", "256MiB"]
    return subprocess.Popen(
        [sys.executable, "-m", "reshard", "convert", *given, "--workers", "2", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_the_command_prints_only_its_answer(
    trained: Path, alone: Alone, cluster: Any, tmp_path: Path
) -> None:
    """Also where a worker is killed, of which Ray tells."""
    run = command(tmp_path, trained, "--ray", cluster.address, "--parts", "6", "--json")
    until(lambda: bool(workers(cluster)) or run.poll() is not None)
    send(workers(cluster)[:1], signal.SIGKILL)
    out, err = run.communicate(timeout=120)
    assert run.returncode == 0, err
    assert json.loads(out)["target"] == str(tmp_path / "t")
    assert files_of(tmp_path / "t") == alone()
    assert names_in(tmp_path) == ["layout.json", "t"]


@pytest.fixture
def notes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of parts that are held back."""
    return tmp_path_factory.mktemp("notes")


class HeldExecutor(RayExecutor):
    """Holds parts back in the folder ``notes``."""

    notes: Path

    def submit(self, work: Any, /, *arguments: Any) -> Any:  # type: ignore[override]  # no keywords
        return super().submit(HeldWork(work, str(self.notes)), *arguments)


def convert_held(source: Path, target: Path, address: str, notes: Path, **options: Any) -> Any:
    with HeldExecutor(address) as executor:
        executor.notes = notes
        given = {"layout": LAYOUT, "parts": 6, **LIMITS, **options}
        return reshard.convert(source, target, executor=executor, **given)


def test_workers_that_are_killed_change_nothing(
    trained: Path, alone: Alone, cluster: Any, notes: Path, tmp_path: Path
) -> None:
    killed: dict[str, int] = {}

    def kill(_: reshard.Progress) -> None:
        if not killed and len(begun(notes)) == 3:
            killed.update(sorted(begun(notes).items())[:2])
            for pid in killed.values():
                os.kill(pid, signal.SIGKILL)
            go(notes)

    report = convert_held(trained, tmp_path / "t", cluster.address, notes, progress=kill)
    assert len(killed) == 2
    assert [name for name in killed if (notes / f"{name}.ended").exists()] == []
    assert report.resumed_bytes == 0  # of an earlier run
    assert files_of(tmp_path / "t") == alone()
    assert names_in(tmp_path) == ["t"]


def test_a_node_that_is_lost_changes_nothing(
    trained: Path, alone: Alone, cluster: Any, notes: Path, tmp_path: Path
) -> None:
    node = cluster.add_node(**NODE)

    def lose(_: reshard.Progress) -> None:
        there = {process.pid for process in processes_of(node)} if node else set()
        if there & set(begun(notes).values()):
            cluster.remove_node(node, allow_graceful=False)
            go(notes)

    convert_held(trained, tmp_path / "t", cluster.address, notes, progress=lose)
    assert files_of(tmp_path / "t") == alone()
    assert names_in(tmp_path) == ["t"]


_COORDINATOR = """
import sys
from pathlib import Path
from tests.executors.test_ray import convert_held
source, target, address, notes = sys.argv[1:]
convert_held(Path(source), Path(target), address, Path(notes))
"""


def test_a_coordinator_that_is_killed_is_resumed(
    trained: Path, alone: Alone, cluster: Any, notes: Path, tmp_path: Path
) -> None:
    words = [str(trained), str(tmp_path / "t"), cluster.address, str(notes)]
    run = subprocess.Popen([sys.executable, "-c", _COORDINATOR, *words])
    try:
        until(lambda: len(begun(notes)) == 3)
    finally:
        run.kill()
        run.wait()
    assert not (tmp_path / "t").exists()
    report = convert(
        trained, tmp_path / "t", cluster
    )  # Ray ends the tasks of a driver that is gone
    assert 0 < report.resumed_bytes < report.moved_bytes
    assert files_of(tmp_path / "t") == alone()
    assert names_in(tmp_path) == ["t"]


class StoppedError(Exception):
    """An error of a caller's own code."""


def test_after_an_end_nothing_goes_on(
    trained: Path,
    alone: Alone,
    cluster: Any,
    notes: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Three parts are at work, three wait for a host: these are withdrawn, those are interrupted."""
    monkeypatch.setattr(on_executor, "STOP_S", 0.3)

    def stop(_: reshard.Progress) -> None:
        if len(begun(notes)) == 3:
            raise StoppedError

    with pytest.raises(StoppedError):
        convert_held(trained, tmp_path / "t", cluster.address, notes, progress=stop)
    assert len(list(notes.glob("*.ended"))) == 3
    go(notes)
    before = {path: path.lstat().st_ctime_ns for path in tmp_path.rglob("*")}
    time.sleep(0.5)
    assert {path: path.lstat().st_ctime_ns for path in tmp_path.rglob("*")} == before
    assert convert(trained, tmp_path / "t", cluster).resumed_bytes > 0
    assert files_of(tmp_path / "t") == alone()
    assert names_in(tmp_path) == ["t"]


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("s3_bucket", {}),
        *campaign(
            ("s3_bucket", {"to": "safetensors", "file_bytes": "9MB"}),
            ("gcs_bucket", {}),
            ("gcs_bucket", {"to": "safetensors", "file_bytes": "9MB"}),
        ),
    ],
    ids=str,
)
def test_hosts_write_to_buckets(
    kind: str,
    options: dict[str, Any],
    trained: Path,
    cluster: Any,
    request: pytest.FixtureRequest,
    tmp_path: Path,
) -> None:
    """The processes know the store by the variables that are passed on."""
    before = dict(os.environ)
    bucket = request.getfixturevalue(kind)
    environment = {k: v for k, v in os.environ.items() if before.get(k) != v}
    url = f"{bucket.url}/run/served"
    convert(trained, url, cluster, environment=environment, **options)
    reshard.convert(trained, tmp_path / "again", layout=LAYOUT, **options)
    assert reshard.verify(url, tmp_path / "again").differences == 0
    names = [entry["path"] for page in bucket.store().list() for entry in page]
    assert [name for name in names if "reshard" in name] == []
    assert not bucket.emulator.uploads.unfinished


def test_an_error_names_its_part_its_host_and_its_tensor(
    trained: Path, cluster: Any, tmp_path: Path
) -> None:
    source = tmp_path / "damaged"
    shutil.copytree(trained, source)
    files = [path for path in sorted((source / "big_3").rglob("*")) if path.suffix != ".json"]
    largest = max((path for path in files if path.is_file()), key=lambda p: p.stat().st_size)
    data = bytearray(largest.read_bytes())
    data[len(data) // 2] ^= 1
    largest.write_bytes(data)
    with pytest.raises(CorruptError, match=rf"^part \d/6 on host '{host_name()}': tensor 'big_3'"):
        convert(source, tmp_path / "t", cluster)
    assert not (tmp_path / "t").exists()


def test_a_host_without_the_memory(trained: Path, cluster: Any, tmp_path: Path) -> None:
    with pytest.raises(PlanError) as caught:
        convert(trained, tmp_path / "t", cluster, max_memory="3GiB")
    assert str(caught.value).startswith(
        "a part needs 3.12 GiB of memory, but no host lends more than 2.00 GiB to Ray; allow less (max_memory), or begin Ray there with more "
        "(--memory)"
    )
    assert not (tmp_path / "t").exists()


def test_a_host_with_fewer_processors_does_parts(
    trained: Path, alone: Alone, cluster: Any, tmp_path: Path
) -> None:
    convert(trained, tmp_path / "t", cluster, workers=16, parts=2)
    assert files_of(tmp_path / "t") == alone()


def test_a_cluster_without_processors(cluster: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    executor = RayExecutor(cluster.address)
    monkeypatch.setattr(executor, "_nodes", list)
    with pytest.raises(ReshardError, match="has no host with processors; add one with `ray start"):
        executor.submit(abs, 1)


def test_no_cluster_at_the_address(trained: Path, tmp_path: Path) -> None:
    run = command(tmp_path, trained, "--ray", "127.0.0.1:1")
    _, err = run.communicate(timeout=120)
    assert run.returncode == 1
    assert "no Ray cluster of this version of Ray and Python answers at '127.0.0.1:1'" in err
    assert "Traceback" not in err
    assert names_in(tmp_path) == ["layout.json"]


@pytest.mark.parametrize("address", ["", "local", None])
def test_an_address_that_is_none(address: Any) -> None:
    with pytest.raises(
        PlanError, match=rf"the address of a Ray cluster is {address!r}; expected one such as 10\."
    ):
        RayExecutor(address)


def test_without_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(
        MissingPackageError, match=r"Ray is not installed here; .* on every host, with one version"
    ):
        RayExecutor("127.0.0.1:1")


def end(_: str) -> None:
    os._exit(1)


def broken(text: str) -> None:
    raise OddError(text)


class OddError(Exception):
    """An error that cannot be pickled."""

    def __reduce__(self) -> Any:
        raise TypeError("not this one")


def test_how_a_task_ends(cluster: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "RETRIES", 0)
    with RayExecutor(cluster.address) as executor:
        assert executor.submit(abs, -1).result() == 1
        with pytest.raises(BrokenExecutor, match="Ray gave it up: "):
            executor.submit(end, "").result()
        with pytest.raises(ReshardError, match="OddError: away; a task failed on another host"):
            executor.submit(broken, "away").result()
        with pytest.raises(TypeError, match="bad operand") as caught:
            executor.submit(abs, "text").result()
        assert "on another host:\nTraceback" in caught.value.__notes__[0]
        left = executor.submit(time.sleep, 1000)
    with pytest.raises(BrokenExecutor, match="Ray gave it up"):
        left.result(60)
