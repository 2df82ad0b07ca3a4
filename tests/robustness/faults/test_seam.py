"""The seam is all there is: no other way to the file system is taken than those that tests can disturb."""

from __future__ import annotations

import ast
import os
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import reshard
from tests.robustness.faults.seam import BY_DESCRIPTOR, BY_PATH, OF_LIBC, Call, Go, at_the_seam

PARTS = (
    "conversion", "deltas", "engine", "formats", "identity", "inspection", "planning", "restoring", "saving", "storage", "streaming", "verification",
)  # fmt: skip

NO_FILES = frozenset((
    "fspath", "fsdecode", "fsencode", "getpid", "strerror", "sysconf", "sched_getaffinity", "walk", "fdopen", "minor",
    "major", "uname", "environ", "cpu_count", "register_at_fork", "kill",
    "getppid", "_exit",
    "stat_result",
))  # fmt: skip
"""Of ``os``: what touches no file, or does so by other functions of it."""

OTHERS = frozenset(("rmtree", "copyfile", "get_terminal_size"))
"""Of ``shutil``: what does its work by functions of ``os`` and by ``open``."""


@cache
def nodes(path: Path) -> list[ast.AST]:
    return list(ast.walk(ast.parse(path.read_text())))


def calls(path: Path) -> Iterator[tuple[str, str]]:
    """Every ``module.function`` that a file calls or hands on."""
    for node in nodes(path):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            yield node.value.id, node.attr


def files() -> Iterator[Path]:
    root = Path(reshard.__file__).parent
    for part in PARTS:
        yield from (root / part).rglob("*.py")


def test_functions_of_os_are_at_the_seam_or_touch_no_file():
    known = {*BY_PATH, *BY_DESCRIPTOR, *NO_FILES, "path"}
    for path in files():
        names = {name for module, name in calls(path) if module == "os" and name.islower()}
        assert names <= known, path


def test_no_other_module_reads_or_writes():
    for path in files():
        for module, name in calls(path):
            assert module != "shutil" or name in OTHERS, path
            assert module not in ("tempfile", "posix"), path
            assert module != "socket" or name == "gethostname", path
            assert (module, name) not in {("np", "load"), ("np", "save"), ("np", "fromfile"), ("np", "memmap")}, path  # fmt: skip


def test_memory_maps_are_of_no_file():
    for path in files():
        for node in nodes(path):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in ("mmap.mmap", "mmap"):
                assert ast.unparse(node.args[0]) == "-1", path


def test_the_c_library_is_asked_for_no_other_function():
    for path in files():
        for node in nodes(path):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Call):
                function = node.value.func
                if isinstance(function, ast.Name) and function.id == "libc":
                    assert node.attr in OF_LIBC, path


@pytest.mark.parametrize("way", ["os", "path", "built in", "with"])
def test_every_way_of_reading_is_recorded(way, tmp_path):
    """The layer itself: files that Python buffers pass it as well."""
    file, seen = tmp_path / "file", list[str]()
    file.write_bytes(b"x" * 3000)

    def hook(call: Call, go: Go) -> object:
        seen.append(call.kind)
        return go(limit=100) if call.kind in ("preadv", "pread", "read") else go()

    with at_the_seam(tmp_path, hook):
        if way == "os":
            fd = os.open(file, os.O_RDONLY)
            data = os.pread(fd, 100, 0)
            os.close(fd)
        elif way == "path":
            data = file.read_bytes()
        elif way == "built in":
            with open(file, "rb") as opened:  # noqa: PTH123  the call that the seam watches
                data = opened.read()
        else:
            with file.open("rb") as opened:
                data = opened.read(2000)
    assert data == b"x" * {"os": 100, "with": 2000}.get(way, 3000)
    assert seen.count("open") == 1
    assert sum(kind in ("pread", "preadv", "read") for kind in seen) >= len(data) // 100
