"""The limits of a host, read from folders that imitate those of the kernel."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from reshard.storage import host
from reshard.storage.host import allowed_memory, default_max_memory, default_workers, free_bytes

GIB = 1 << 30
MACHINE = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def limit(root: Path, name: str, text: str) -> None:
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    (root / name).write_text(text)


OWN = {
    "v2": "0::/user/job\n",
    "v1": "12:cpu,cpuacct:/x\n4:memory:/user/job\n1:name=systemd:/\n",
    "both": "4:memory,hugetlb:/user/job\n0::/user\n",
    "outside": "0::/../../user\n",
    "none": "",
}


@pytest.fixture
def allowed(tmp_path: Path) -> Callable[[str], int]:
    """What a process is allowed that belongs to one of ``OWN`` below ``tmp_path``."""

    def ask(own: str) -> int:
        (tmp_path / "own").write_text(OWN[own])
        return allowed_memory(tmp_path / "fs", tmp_path / "own")

    return ask


@pytest.mark.parametrize("own", OWN)
def test_without_limits_it_is_the_machine(own, allowed):
    assert allowed(own) == MACHINE


def test_without_cgroups_it_is_the_machine(tmp_path):
    assert allowed_memory(tmp_path / "fs", tmp_path / "own") == MACHINE


@pytest.mark.parametrize(
    ("own", "name"),
    [
        ("none", "memory.max"),
        ("none", "memory/memory.limit_in_bytes"),
        ("outside", "memory.max"),
        ("v2", "memory.max"),
        ("v2", "user/memory.max"),
        ("v2", "user/job/memory.max"),
        ("v1", "memory/memory.limit_in_bytes"),
        ("v1", "memory/user/memory.limit_in_bytes"),
        ("v1", "memory/user/job/memory.limit_in_bytes"),
        ("both", "user/memory.max"),
        ("both", "memory/user/job/memory.limit_in_bytes"),
    ],
)
def test_each_place_of_a_limit(own, name, tmp_path, allowed):
    limit(tmp_path / "fs", name, "536870912\n")
    assert allowed(own) == 512 << 20


def test_the_tightest_limit_counts(tmp_path, allowed):
    limit(tmp_path / "fs", "memory.max", str(8 << 20))
    limit(tmp_path / "fs", "user/memory.max", str(4 << 20))
    limit(tmp_path / "fs", "user/job/memory.max", str(6 << 20))
    assert allowed("v2") == 4 << 20


@pytest.mark.parametrize("text", ["max\n", "", "much", str(1 << 62)])
def test_limits_that_limit_nothing(text, tmp_path, allowed):
    limit(tmp_path / "fs", "memory.max", text)
    limit(tmp_path / "fs", "memory/memory.limit_in_bytes", "9223372036854771712")
    assert allowed("both") == MACHINE


@pytest.mark.parametrize("own", ["v1", "v2"])
def test_a_cgroup_beside_this_one_does_not_count(own, tmp_path, allowed):
    for name in ("other/memory.max", "memory/other/memory.limit_in_bytes", "x/memory.max"):
        limit(tmp_path / "fs", name, "1000")
    assert allowed(own) == MACHINE


def test_this_process():
    assert 0 < allowed_memory() <= MACHINE


@pytest.mark.parametrize(
    ("allowed", "expected"), [(2 * GIB, GIB // 2), (4 * GIB, GIB), (64 * GIB, GIB)]
)
def test_default_memory_is_a_quarter_or_a_gibibyte(allowed, expected, monkeypatch):
    monkeypatch.setattr(host, "allowed_memory", lambda: allowed)
    assert default_max_memory() == expected


@pytest.mark.parametrize(("processors", "workers"), [(1, 2), (2, 2), (8, 8), (64, 16)])
def test_default_workers(processors, workers, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(processors)))
    assert default_workers() == workers


def test_free_bytes_where_the_path_will_be(tmp_path, monkeypatch):
    asked = []

    def statvfs(path: Path) -> SimpleNamespace:
        asked.append(path)
        return SimpleNamespace(f_bavail=7, f_bfree=9, f_frsize=512, f_bsize=4096)

    monkeypatch.setattr(os, "statvfs", statvfs)
    assert free_bytes(tmp_path / "not" / "yet" / "there") == 7 * 512
    assert free_bytes(tmp_path) == 7 * 512
    assert asked == [tmp_path, tmp_path]


def test_free_bytes_of_a_path_that_starts_nowhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert free_bytes(Path("not/there")) > 0
