"""What a conversion must leave as it was: descriptors, threads, files, processes, maps and locks."""

from __future__ import annotations

import gc
import os
import tempfile
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path

import pytest


@dataclass(frozen=True)
class Held:
    """What this process holds, besides memory.

    Attributes:
        files: what open descriptors lead to, and how many of each.
        children: process ids.
        temporary: names in the folder for temporary files.
        maps: files below the folder that is watched, which are mapped.
        locks: kernel locks of this process, by inode.
        partial: staging folders below the folder that is watched.
    """

    files: Counter[str]
    threads: frozenset[str]
    children: frozenset[int]
    temporary: frozenset[str]
    maps: frozenset[str]
    locks: Counter[str]
    partial: frozenset[str]


def held(folder: Path) -> Held:
    """What is held now; ``folder`` has the checkpoints."""
    gc.collect()
    return Held(
        Counter(_open_files()),
        frozenset(t.name for t in threading.enumerate()),
        frozenset(_children()),
        frozenset(_temporary()),
        frozenset(_mapped(folder)),
        Counter(_locks()),
        frozenset(str(p) for p in folder.rglob("*reshard-partial*")),
    )


def _temporary() -> Iterator[str]:
    for path in Path(tempfile.gettempdir()).iterdir():
        yield path.name


def _open_files() -> Iterator[str]:
    for fd in Path("/proc/self/fd").iterdir():
        try:
            path = str(fd.readlink())
        except FileNotFoundError:  # the listing's own
            continue
        if not path.startswith(("/proc/", "anon_inode:", "pipe:", "socket:", "/dev/")):
            yield path


def _children() -> Iterator[int]:
    for task in Path("/proc/self/task").iterdir():
        try:
            text = (task / "children").read_text()
        except FileNotFoundError:
            continue
        yield from (int(pid) for pid in text.split() if not _is_pythons_own(pid))


def _is_pythons_own(pid: str) -> bool:
    """multiprocessing starts a process that watches over its semaphores, once, and keeps it."""
    try:
        return b"resource_tracker" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except FileNotFoundError:
        return True  # it ended between the two looks


def _mapped(folder: Path) -> Iterator[str]:
    for line in Path("/proc/self/maps").read_text().splitlines():
        if str(folder) in line:
            yield line.split(maxsplit=5)[-1]


def _locks() -> Iterator[str]:
    for line in Path("/proc/locks").read_text().splitlines():
        words = line.split()
        if words[-4] == str(os.getpid()):
            yield words[-3]


@contextmanager
def _own_temporary_folder() -> Iterator[None]:
    """One that no test beside this one uses, for this process and its children."""
    with tempfile.TemporaryDirectory() as own, pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", own)
        patch.setattr(tempfile, "tempdir", own)
        yield


@contextmanager
def nothing_leaks(folder: Path, keeps: tuple[str, ...] = ()) -> Iterator[None]:
    """Holds the block to leave everything as it was.

    ``keeps`` names the staging folders below ``folder`` that may stay for the next run.
    """
    with _own_temporary_folder():
        before = held(folder)
        yield
        after = held(folder)
    for field in fields(Held):
        was, now = getattr(before, field.name), getattr(after, field.name)
        if field.name == "partial":
            now = {p for p in now if not any(k in p for k in keeps)}
        extra = now - was
        assert not extra, f"{field.name} left behind: {sorted(extra)}"
