"""Makes files durable: after a sync they survive a power failure, or an error is raised. Finished chunks go to the device early."""

from __future__ import annotations

import ctypes
import errno
import os
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from queue import SimpleQueue
from types import TracebackType

from reshard.errors import SyncError
from reshard.storage.local.files import close_after_reading, libc, storage_error, storage_errors

FSYNC_FILES = 256
"""Up to this many files are synced one by one; for more, syncing the whole file system is faster."""


def sync_tree(root: Path) -> None:
    """Makes everything below ``root`` durable, folders too; raises StorageError if that fails."""
    files: list[Path] = []
    folders: list[Path] = []
    for folder, names in _walk(root):
        files += [Path(folder, name) for name in names]
        folders.append(Path(folder))
        if len(files) > FSYNC_FILES and syncfs_tells_errors():
            _sync_file_system(root)
            return
    for path in (*files, *folders):
        fsync(path)


def sync_files(root: Path, files: Sequence[str]) -> None:
    """Makes these files below ``root`` durable; publishing makes the folders durable."""
    if len(files) > FSYNC_FILES and syncfs_tells_errors():
        _sync_file_system(root)
        return
    for file in files:
        fsync(root / file)


def syncfs_tells_errors() -> bool:
    """True if syncfs(2) reports write errors: Linux 5.8 and later."""
    found = re.match(r"(\d+)\.(\d+)", os.uname().release)
    return found is not None and (int(found[1]), int(found[2])) >= (5, 8)


def _walk(root: Path) -> Iterator[tuple[str, list[str]]]:
    """Every folder with its files; a folder that cannot be listed is an error, never passed over."""

    def refuse(error: OSError) -> None:
        raise storage_error("list", error.filename or root, error) from error

    for folder, _, names in os.walk(root, onerror=refuse):
        yield folder, names


def forget_cached(root: Path) -> None:
    """Asks the kernel to drop the (synced) files from its cache, so that reading reaches the device."""
    for folder, names in _walk(root):
        for name in names:
            with storage_errors("read", Path(folder, name)):
                fd = os.open(Path(folder, name), os.O_RDONLY | os.O_CLOEXEC)
                try:
                    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
                finally:
                    close_after_reading(fd)


def fsync(path: Path) -> None:
    """Makes one file or folder durable."""
    with _sync_errors(path):
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            close_after_reading(fd)


@contextmanager
def _sync_errors(path: Path) -> Iterator[None]:
    """Like ``storage_errors``, but raises SyncError: the kernel may have dropped data that it could not write."""
    try:
        yield
    except OSError as error:
        raise SyncError(str(storage_error("sync", path, error))) from error


def _sync_file_system(root: Path) -> None:
    with _sync_errors(root):
        fd = os.open(root, os.O_RDONLY | os.O_CLOEXEC)
        try:
            checked(lambda: libc().syncfs(fd))
        finally:
            close_after_reading(fd)


def checked(call: Callable[[], int], path: Path | None = None) -> None:
    """Makes a call of the C library, again if a signal interrupts it; raises the OSError that it leaves."""
    while call() != 0:
        code = ctypes.get_errno()
        if code != errno.EINTR:
            raise OSError(code, os.strerror(code), str(path) if path else None)


WRITEBACK_BYTES = 1 << 20
"""Smaller chunks are left to the sync at the end: the device writes them faster together."""

_SYNC_FILE_RANGE_WRITE = 2


class Writeback:
    """Makes the kernel start writing finished chunks, on its own thread; safe from any thread.

    The system call waits while the device's queue is full (18 ms on average, measured), and threads that make
    chunks should not. It is only a hint: the sync at the end makes files durable, reports every error and writes
    the rest, small files included.
    """

    def __init__(self) -> None:
        self._ranges: SimpleQueue[tuple[str, int, int] | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._is_over = False

    def __enter__(self) -> Writeback:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Stops the thread; the sync writes the chunks that it has not started."""
        self._is_over = True
        self._ranges.put(None)
        if self._thread is not None:
            self._thread.join()

    def begin(self, path: str, nbytes: int, offset: int = 0) -> None:
        """Queues ``nbytes`` complete bytes of a file, from ``offset``; does not wait. A URL is passed over."""
        if nbytes < WRITEBACK_BYTES or "://" in path:
            return
        self._ranges.put((path, nbytes, offset))
        with self._lock:
            if self._thread is None:
                self._start()

    def _start(self) -> None:
        """Starts the thread at the first chunk: worker processes were forked before, without this thread."""
        thread = threading.Thread(target=self._run, name="reshard.writeback", daemon=True)
        with suppress(RuntimeError):  # the system allows no more threads
            thread.start()
            self._thread = thread

    def _run(self) -> None:
        while (found := self._ranges.get()) is not None and not self._is_over:
            _begin(*found)


def _begin(path: str, nbytes: int, offset: int) -> None:
    with suppress(OSError):
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            first, count = ctypes.c_int64(offset), ctypes.c_int64(nbytes)
            libc().sync_file_range(fd, first, count, _SYNC_FILE_RANGE_WRITE)
        finally:
            close_after_reading(fd)
