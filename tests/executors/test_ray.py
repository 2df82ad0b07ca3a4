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
from pathlib import Path
from typing import Any

import pytest

import reshard
from reshard.conversion import run as run_module
from reshard.engine import task_stream
from reshard.errors import PlanError, ReshardError, StorageError
from reshard.executors.ray import RayExecutor
from tests.campaigns import rarely, singly
from tests.executors.cluster import NODE, actors, once, processes_of, ray_cluster, send, until
from tests.executors.trees import LAYOUT, files_of

pytestmark = pytest.mark.xdist_group("ray")

Alone = Callable[..., dict[str, bytes]]
LIMITS = {"max_memory": "256MiB", "workers": 2}


def convert(source: Path, target: Path | str, cluster: Any, **options: Any) -> Any:
    environment = options.pop("environment", None)
    with RayExecutor(cluster.address, environment=environment) as executor:
        return reshard.convert(
            source, target, layout=LAYOUT, executor=executor, **{**LIMITS, **options}
        )


@pytest.fixture
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many batches, so that much is still to do when something happens."""
    monkeypatch.setattr(task_stream, "BATCH_TASKS", 2)
    monkeypatch.setattr(task_stream, "BATCH_BYTES", 1 << 20)


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
    report = convert(trained, tmp_path / "t", cluster, **options)
    assert files_of(tmp_path / "t") == alone(**options)
    assert names_in(tmp_path) == ["t"]
    assert report.time.planned.hosts == 3
    until(lambda: not actors(cluster))


def test_the_command_takes_a_cluster(
    trained: Path, alone: Alone, cluster: Any, tmp_path: Path
) -> None:
    layout = tmp_path / "layout.json"
    layout.write_text(reshard_json(LAYOUT))
    words = [str(trained), str(tmp_path / "t"), "--layout", str(layout), "--max-memory", "256MiB"]
    done = command("convert", *words, "--ray", cluster.address)
    assert done.returncode == 0, done.stderr
    assert "planned for 3 hosts" in done.stdout or "3 hosts" in done.stdout
    assert files_of(tmp_path / "t") == alone()
    assert command("verify", str(trained), str(tmp_path / "t")).returncode == 0


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def reshard_json(document: Any) -> str:
    return json.dumps(document)


def command(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "reshard", *words], capture_output=True, text=True, check=False
    )


_HELD = """
import sys, time
from pathlib import Path
from reshard.cli import main
from reshard.executors.ray import RayExecutor

inner, go = RayExecutor.submit, Path(sys.argv.pop(1))

def held(*arguments):
    while not go.exists():
        time.sleep(0.01)
    return inner(*arguments)

RayExecutor.submit = held
main()
"""
"""The command, which waits with all actors until a file is there."""


def test_ray_prints_nothing_into_the_answer(trained: Path, cluster: Any, tmp_path: Path) -> None:
    layout = tmp_path / "layout.json"
    layout.write_text(reshard_json(LAYOUT))
    words = [str(trained), str(tmp_path / "t"), "--layout", str(layout), "--max-memory", "256MiB"]
    run = subprocess.Popen(
        [sys.executable, "-c", _HELD, str(tmp_path / "go"), "convert", *words, "--ray", cluster.address, "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )  # fmt: skip
    try:
        until(lambda: len(actors(cluster)) == 3)
        send(actors(cluster)[:1], signal.SIGKILL)  # of which Ray tells
    finally:
        (tmp_path / "go").touch()
    out, err = run.communicate()
    assert run.returncode == 0, err
    assert json.loads(out)["time"]["planned"]["hosts"] == 3


@pytest.mark.usefixtures("small_batches")
def test_workers_that_are_killed_change_nothing(
    trained: Path, alone: Alone, cluster: Any, tmp_path: Path
) -> None:
    kill = once(lambda: send(actors(cluster)[:2], signal.SIGKILL))
    convert(trained, tmp_path / "t", cluster, progress=kill)
    assert files_of(tmp_path / "t") == alone()
    assert names_in(tmp_path) == ["t"]


@pytest.mark.usefixtures("small_batches")
def test_a_node_that_is_lost_changes_nothing(
    trained: Path, alone: Alone, cluster: Any, tmp_path: Path
) -> None:
    node = cluster.add_node(**NODE)
    lose = once(lambda: cluster.remove_node(node, allow_graceful=False))
    convert(trained, tmp_path / "t", cluster, progress=lose)
    assert files_of(tmp_path / "t") == alone()
    assert names_in(tmp_path) == ["t"]


@pytest.mark.usefixtures("small_batches")
def test_a_node_that_thaws_after_publishing_changes_no_byte(
    trained: Path, alone: Alone, cluster: Any, tmp_path: Path
) -> None:
    node, frozen = cluster.add_node(**NODE), []

    def freeze() -> None:
        frozen.extend(processes_of(node))
        send(frozen, signal.SIGSTOP)

    try:
        convert(trained, tmp_path / "t", cluster, progress=once(freeze))
        before = {path: path.stat() for path in sorted((tmp_path / "t").rglob("*"))}
        assert files_of(tmp_path / "t") == alone()
    finally:
        send(frozen, signal.SIGCONT)
    time.sleep(3)  # its tasks go on, if they can
    after = {path: path.stat() for path in sorted((tmp_path / "t").rglob("*"))}
    assert [(p, s.st_ino, s.st_mtime_ns) for p, s in before.items()] == [
        (p, s.st_ino, s.st_mtime_ns) for p, s in after.items()
    ]
    assert files_of(tmp_path / "t") == alone()
    assert names_in(tmp_path) == ["t"]
    cluster.remove_node(node, allow_graceful=False)


_COORDINATOR = """
import sys, time
import reshard
from reshard.engine import task_stream
from reshard.executors.ray import RayExecutor
from tests.executors.trees import LAYOUT
task_stream.BATCH_TASKS, task_stream.BATCH_BYTES = 2, 1 << 20
source, target, address = sys.argv[1:]

def progress(found):
    print(found.tasks_done, flush=True)
    while found.tasks_done >= 10:  # until it is killed
        time.sleep(1)

with RayExecutor(address) as executor:
    reshard.convert(source, target, layout=LAYOUT, executor=executor, max_memory="256MiB", workers=2,
                    progress=progress)
"""


@pytest.mark.usefixtures("small_batches")
def test_a_coordinator_that_is_killed_is_resumed(
    trained: Path, alone: Alone, cluster: Any, tmp_path: Path
) -> None:
    run = subprocess.Popen(
        [sys.executable, "-c", _COORDINATOR, str(trained), str(tmp_path / "t"), cluster.address],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert run.stdout is not None
    try:
        while int(run.stdout.readline()) < 10:
            pass
    finally:
        run.kill()
        run.wait()
    assert not (tmp_path / "t").exists()
    report = convert(trained, tmp_path / "t", cluster)
    assert report.resumed_bytes > 0
    assert files_of(tmp_path / "t") == alone()
    assert names_in(tmp_path) == ["t"]
    until(lambda: not actors(cluster))


@pytest.mark.parametrize(
    ("kind", "options"),
    singly(["s3_bucket", "gcs_bucket"], [{}, {"to": "safetensors", "file_bytes": "9MB"}]),
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
    before = dict(os.environ)
    bucket = request.getfixturevalue(kind)
    environment = {k: v for k, v in os.environ.items() if before.get(k) != v}
    url = f"{bucket.url}/run/served"
    convert(trained, url, cluster, environment=environment, **options)
    assert reshard.verify(trained, url).differences == 0
    reshard.convert(trained, tmp_path / "again", layout=LAYOUT, **options)
    assert reshard.verify(url, tmp_path / "again").differences == 0
    names = [entry["path"] for page in bucket.store().list() for entry in page]
    assert [name for name in names if "reshard" in name] == []
    assert not bucket.emulator.uploads.unfinished


def test_an_error_names_its_tensor(trained: Path, cluster: Any, tmp_path: Path) -> None:
    source = tmp_path / "damaged"
    shutil.copytree(trained, source)
    files = [path for path in sorted((source / "big_3").rglob("*")) if path.suffix != ".json"]
    largest = max((path for path in files if path.is_file()), key=lambda p: p.stat().st_size)
    data = bytearray(largest.read_bytes())
    data[len(data) // 2] ^= 1
    largest.write_bytes(data)
    with pytest.raises(ReshardError, match="'big_3'"):
        convert(source, tmp_path / "t", cluster)
    assert not (tmp_path / "t").exists()
    until(lambda: not actors(cluster))


def test_no_cluster_at_the_address(trained: Path, tmp_path: Path) -> None:
    layout = tmp_path / "layout.json"
    layout.write_text(reshard_json(LAYOUT))
    words = [str(trained), str(tmp_path / "t"), "--layout", str(layout), "--ray", "127.0.0.1:1"]
    done = command("convert", *words)
    assert done.returncode == 1
    assert (
        "no Ray cluster of this version of Ray and Python answers at '127.0.0.1:1'" in done.stderr
    )
    assert "Traceback" not in done.stderr
    assert names_in(tmp_path) == ["layout.json"]


def test_a_host_without_the_memory_is_named(trained: Path, cluster: Any, tmp_path: Path) -> None:
    with pytest.raises(
        PlanError, match=r"host '.*' lends 2\.00 GiB of memory to Ray, but each host"
    ) as e:
        convert(trained, tmp_path / "t", cluster, max_memory="3GiB")
    assert "allow less (max_memory), or begin Ray there with more (--memory)" in str(e.value)
    assert not (tmp_path / "t").exists()


def test_another_version_on_a_host_is_refused(
    trained: Path, cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_module, "__version__", "9.9")
    with pytest.raises(
        ReshardError, match=r"host '.*' has reshard .*, but this run is of 9\.9; install"
    ):
        convert(trained, tmp_path / "t", cluster)


def test_a_host_that_sees_another_source_is_named(
    trained: Path, cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = run_module.check_hosts

    def other(executor: Any, source: str, _: str, targets: Any) -> None:
        original(executor, source, "0" * 32, targets)

    monkeypatch.setattr("reshard.conversion.run.check_hosts", other)
    with pytest.raises(
        StorageError, match=rf"host '.*' sees another source at '{trained}': the names"
    ):
        convert(trained, tmp_path / "t", cluster)


@pytest.mark.usefixtures("small_batches")
def test_a_cluster_that_shrinks_to_nothing(trained: Path, tmp_path: Path) -> None:
    with ray_cluster(1, num_cpus=0) as small:
        nodes = [small.add_node(**NODE) for _ in range(2)]

        def lose() -> None:
            for node in nodes:
                small.remove_node(node, allow_graceful=False)

        with pytest.raises(ReshardError, match="no host of the Ray cluster is left"):
            convert(trained, tmp_path / "t", small, progress=once(lose, after=4))
    assert not (tmp_path / "t").exists()
