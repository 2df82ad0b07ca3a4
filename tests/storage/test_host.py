"""What a host allows, told by folders made to look like those of the kernel."""

from __future__ import annotations

import os
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


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty hierarchy in which this process belongs to ``user/job``."""
    monkeypatch.setattr(host, "_own_cgroup", lambda: "user/job")
    return tmp_path


def test_without_limits_it_is_the_machine(root):
    assert allowed_memory(root) == MACHINE


@pytest.mark.parametrize(
    "name",
    [
        "memory.max",
        "user/memory.max",
        "user/job/memory.max",
        "memory/memory.limit_in_bytes",
    ],
)
def test_each_place_of_a_limit(name, root):
    limit(root, name, "536870912\n")
    assert allowed_memory(root) == 512 << 20


def test_the_tightest_limit_counts(root):
    limit(root, "memory.max", str(8 << 20))
    limit(root, "user/memory.max", str(4 << 20))
    limit(root, "user/job/memory.max", str(6 << 20))
    assert allowed_memory(root) == 4 << 20


@pytest.mark.parametrize("text", ["max\n", "", "much", str(1 << 62)])
def test_limits_that_limit_nothing(text, root):
    limit(root, "memory.max", text)
    limit(root, "memory/memory.limit_in_bytes", "9223372036854771712")
    assert allowed_memory(root) == MACHINE


def test_a_cgroup_beside_this_one_does_not_count(root):
    limit(root, "other/memory.max", "1000")
    assert allowed_memory(root) == MACHINE


@pytest.mark.parametrize(
    ("lines", "own"),
    [
        ("0::/user/job\n", "user/job"),
        ("12:cpu:/x\n0::/\n", ""),
        ("4:memory:/docker/1\n", ""),
        ("", ""),
    ],
)
def test_own_cgroup(lines, own, monkeypatch):
    monkeypatch.setattr(Path, "read_text", lambda _: lines)
    assert host._own_cgroup() == own


def test_own_cgroup_where_there_is_no_proc(monkeypatch):
    def missing(_: Path) -> str:
        raise FileNotFoundError

    monkeypatch.setattr(Path, "read_text", missing)
    assert host._own_cgroup() == ""


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
