"""Writeback: which files it starts, which it leaves to the sync; writers never wait for the device."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pytest

import reshard
from reshard.storage.local import syncing
from reshard.storage.local.syncing import WRITEBACK_BYTES, Writeback

LAYOUT = {"mesh": {"axes": ["x"], "shape": [4]}, "rules": [{"match": "w", "axes": [None, "x"]}]}


class Device:
    """Stands for the kernel: notes what it is asked to write, and takes nothing while it is busy."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.came = threading.Semaphore(0)
        self.free = threading.Event()
        self.free.set()

    def write(self, path: str, nbytes: int, offset: int) -> None:
        assert nbytes >= WRITEBACK_BYTES
        assert offset == 0
        self.asked.append(path)
        self.came.release()
        assert self.free.wait(60)


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Device:
    found = Device()
    monkeypatch.setattr(syncing, "_begin", found.write)
    return found


def threads() -> list[str]:
    return [t.name for t in threading.enumerate() if t.name == "reshard.writeback"]


def test_writeback_starts_in_turn_for_large_files_only(device: Device) -> None:
    with Writeback() as begun:
        begun.begin("small", WRITEBACK_BYTES - 1)
        assert not threads()
        begun.begin("a", WRITEBACK_BYTES)
        begun.begin("b", 10 * WRITEBACK_BYTES)
        assert device.came.acquire(timeout=60) and device.came.acquire(timeout=60)
    assert device.asked == ["a", "b"]
    assert not threads()


def test_writers_do_not_wait_for_a_busy_device(
    device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the end what it has not begun is given up: the device is free again only once the thread is waited for."""
    device.free.clear()
    join = threading.Thread.join

    def free_and_join(thread: threading.Thread, timeout: float | None = None) -> None:
        device.free.set()
        join(thread, timeout)

    with Writeback() as begun:
        for name in "abc":
            begun.begin(name, WRITEBACK_BYTES)
        assert device.came.acquire(timeout=60)
        monkeypatch.setattr(threading.Thread, "join", free_and_join)
    assert device.asked == ["a"]
    assert not threads()


def test_no_thread_and_no_file_are_no_errors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    syncing._begin(str(tmp_path / "missing"), 1, 0)

    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    with Writeback() as begun:
        begun.begin("a", WRITEBACK_BYTES)


def test_a_link_is_not_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    class Library:
        @staticmethod
        def sync_file_range(fd: int, *_: object) -> None:
            asked.append(fd)

    monkeypatch.setattr(syncing, "libc", lambda: Library)
    (tmp_path / "file").write_bytes(b"1")
    (tmp_path / "link").symlink_to("file")
    syncing._begin(str(tmp_path / "link"), 1, 0)
    assert not asked
    syncing._begin(str(tmp_path / "file"), 1, 0)
    assert len(asked) == 1


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The large files that are to be begun."""
    found: list[str] = []

    def begin(_: Writeback, path: str, nbytes: int, offset: int = 0) -> None:
        assert offset == 0
        if nbytes >= WRITEBACK_BYTES:
            found.append(Path(path).name)

    monkeypatch.setattr(Writeback, "begin", begin)
    return found


def saved(folder: Path) -> Path:
    large = np.arange(2 << 20, dtype=np.int32).reshape(1024, 2048)
    reshard.save(folder / "saved", {"w": large, "b": np.zeros(3, np.float32)})
    return folder / "saved"


def large_files(folder: Path) -> list[str]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return sorted(path.name for path in files if path.stat().st_size >= WRITEBACK_BYTES)


@pytest.mark.parametrize("compression", ["none", "zstd:1", "keep"])
def test_writeback_starts_once_for_every_large_chunk_of_a_conversion(
    tmp_path: Path, asked: list[str], compression: str
) -> None:
    layout = None if compression == "keep" else LAYOUT
    source, target = saved(tmp_path), tmp_path / "out"
    asked.clear()
    reshard.convert(source, target, layout=layout, compression=compression)
    assert asked and sorted(asked) == large_files(target)


def test_writeback_starts_once_for_every_large_chunk_of_a_save(
    tmp_path: Path, asked: list[str]
) -> None:
    folder = saved(tmp_path)
    assert asked and sorted(asked) == large_files(folder)
