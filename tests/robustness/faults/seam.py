"""The seam where the project meets the operating system: the functions of ``os`` and a few of the C library.

``at_the_seam(root, hook)`` puts ``hook`` between the two for every call that concerns something below
``root``. A hook gets a ``Call`` and a function that carries it out, and does as it likes: fails,
counts, records, or gives less than was asked for. ``test_seam.py`` holds that there is no other way
to the file system than those listed here.
"""

from __future__ import annotations

import builtins
import ctypes
import fcntl
import io
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any
from unittest.mock import patch

import reshard
from reshard.storage.local import files as local_files

_PROJECT = f"{Path(reshard.__file__).parent}/"
_STORE = frozenset({"storage/local/store.py", "storage/location.py"})

BY_PATH = (
    "open", "mkdir", "stat", "lstat", "scandir", "listdir", "unlink", "remove", "rmdir", "rename", "replace", "readlink",
    "access", "statvfs",
)  # fmt: skip
BY_DESCRIPTOR = (
    "read", "pread", "preadv", "write", "pwrite", "lseek", "ftruncate", "fsync", "fdatasync", "close", "fstat", "posix_fadvise",
    "copy_file_range", "sendfile",
)  # fmt: skip
OF_LIBC = ("syncfs", "renameat2", "sync_file_range", "fallocate")
RENAME_EXCHANGE = 2

CHANGES = frozenset(
    ("create", "mkdir", "write", "pwrite", "ftruncate", "copy_file_range", "sendfile", "ioctl", "rename", "exchange")
)  # fmt: skip
"""Kinds of calls that make or change something; what only removes or syncs is not among them."""

READS = frozenset(("open", "read", "pread", "preadv", "lseek", "copy_file_range", "stat", "lstat", "scandir", "listdir", "fstat"))  # fmt: skip
LIMITED = frozenset(("read", "pread", "preadv", "write", "pwrite", "copy_file_range", "sendfile"))
"""Kinds of calls that may do less than they were asked to, and say so."""


@dataclass(frozen=True, slots=True)
class Call:
    """One call of the operating system.

    Attributes:
        kind: its name; opening is "open" or, where it may make the file, "create", and a rename that
            lets two folders change places is "exchange".
        path: what it is about; of a rename where it leads to.
        site: where in the project it was made, innermost function first; a read through the store belongs to whatever
            asked for it.
    """

    kind: str
    path: str
    arguments: tuple[Any, ...]
    site: tuple[str, ...]


Go = Callable[..., Any]
"""Carries out the call; ``limit`` bytes of it at most, where it is one of ``LIMITED``."""

Hook = Callable[[Call, Go], Any]


@contextmanager
def at_the_seam(root: Path, hook: Hook) -> Iterator[None]:
    """Every call about something below ``root`` goes through ``hook`` in the block."""
    seam = _Seam(str(root), hook)
    with ExitStack() as stack:
        for name in (*BY_PATH, *BY_DESCRIPTOR):
            stack.enter_context(patch.object(os, name, seam.of_os(name)))
        stack.enter_context(patch.object(fcntl, "flock", seam.wrapped("flock", fcntl.flock)))
        stack.enter_context(patch.object(fcntl, "ioctl", seam.wrapped("ioctl", fcntl.ioctl)))
        stack.enter_context(patch.object(os, "fdopen", seam.fdopen))
        stack.enter_context(patch.object(io, "open", seam.open))
        stack.enter_context(patch.object(builtins, "open", seam.open))
        for module in _users_of_libc():
            stack.enter_context(patch.object(module, "libc", lambda: seam))
        yield


def _users_of_libc() -> list[Any]:
    modules = [m for n, m in list(sys.modules.items()) if n.startswith("reshard.")]
    return [m for m in modules if getattr(m, "libc", None) is local_files.libc]


class _Seam:
    """What stands in the place of the functions; the C library's are its attributes."""

    def __init__(self, root: str, hook: Hook) -> None:
        self._root = root
        self._hook = hook
        self._readlink = os.readlink
        self._open = io.open
        self._inside = threading.local()
        library = local_files.libc()
        for name in OF_LIBC:
            setattr(self, name, self._of_libc(name, getattr(library, name)))

    def of_os(self, name: str) -> Callable[..., Any]:
        return self.wrapped(name, getattr(os, name))

    def wrapped(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            return self.pass_on(name, real, args, kwargs)

        return call

    def pass_on(
        self, name: str, real: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        path = self._path(name, args, kwargs)
        if path is None or getattr(self._inside, "hook", False):
            return real(*args, **kwargs)

        def go(limit: int | None = None) -> Any:
            self._inside.hook = False
            try:
                return real(*_limited(name, args, limit), **kwargs)
            finally:
                self._inside.hook = True

        self._inside.hook = True
        try:
            return self._hook(Call(_kind(name, args), path, args, _site()), go)
        finally:
            self._inside.hook = False

    def _of_libc(self, name: str, real: Callable[..., Any]) -> Callable[..., int]:
        def checked(*args: Any) -> int:
            result = real(*args)
            if result != 0:
                raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
            return 0

        def call(*args: Any) -> int:
            try:
                self.pass_on(name, checked, args, {})
            except OSError as error:
                ctypes.set_errno(error.errno or 0)
                return -1
            return 0

        return call

    def open(self, file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
        """Files that Python buffers: what lies below them is passed on call by call."""
        if self._path("open", (file,), {}) is None:
            return self._open(file, mode, *args, **kwargs)
        raw = _Raw(self, file, mode.replace("t", "").replace("b", ""))
        buffered = io.BufferedReader(raw) if raw.readable() else io.BufferedWriter(raw)
        return buffered if "b" in mode else io.TextIOWrapper(buffered)

    def fdopen(self, fd: int, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
        if self._path("read", (fd,), {}) is None:
            return self._open(fd, mode, *args, **kwargs)
        return io.BufferedReader(_Raw(self, fd, "r"))

    def _path(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str | None:
        """What a call is about; None where that is not below the root."""
        if name == "renameat2":
            path = os.fsdecode(args[3])
        elif name in ("rename", "replace"):
            path = os.fspath(args[1])
        elif name == "copy_file_range":
            path = self._of_descriptor(args[1])
        else:
            given = args[0] if args else kwargs.get("path", ".")
            path = self._of_descriptor(given) if isinstance(given, int) else os.fsdecode(given)
        folder = kwargs.get("dir_fd")
        if folder is not None:
            path = f"{self._of_descriptor(folder)}/{path}"
        is_below = path == self._root or path.startswith(f"{self._root}/")
        return path if is_below else None

    def _of_descriptor(self, fd: int) -> str:
        try:
            return self._readlink(f"/proc/self/fd/{fd}").removesuffix(" (deleted)")
        except OSError:
            return ""


class _Raw(io.FileIO):
    """A file of Python's own, whose reads and writes go through the seam."""

    def __init__(self, seam: _Seam, file: Any, mode: str) -> None:
        self._seam = seam
        if isinstance(file, int):
            super().__init__(file, mode)
            return
        flags = os.O_RDONLY if mode == "r" else os.O_WRONLY
        seam.pass_on(
            "open", lambda *_: super(_Raw, self).__init__(file, mode), (os.fspath(file), flags), {}
        )

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer).cast("B")
        return int(self._seam.pass_on("preadv", self._read_some, (self.fileno(), [view]), {}))

    def readall(self) -> bytes:
        parts = list(iter(lambda: self.read(1 << 16), b""))
        return b"".join(parts)

    def read(self, size: int | None = -1) -> bytes:
        if size is None or size < 0:
            return self.readall()
        buffer = bytearray(size)
        return bytes(buffer[: self.readinto(buffer)])

    def write(self, data: Any) -> int:
        real = super().write
        view = memoryview(data).cast("B")
        return int(
            self._seam.pass_on("write", lambda _, part: real(part), (self.fileno(), view), {})
        )

    def _read_some(self, _: int, views: list[memoryview]) -> int:
        return super().readinto(views[0])


def _kind(name: str, args: tuple[Any, ...]) -> str:
    if name == "open":
        flags = args[1] if len(args) > 1 and isinstance(args[1], int) else os.O_RDONLY
        return "create" if flags & (os.O_CREAT | os.O_WRONLY | os.O_RDWR) else "open"
    if name == "renameat2":
        return "exchange" if args[4].value == RENAME_EXCHANGE else "rename"
    return "rename" if name == "replace" else name


def _limited(name: str, args: tuple[Any, ...], limit: int | None) -> tuple[Any, ...]:
    """The same call for at most ``limit`` bytes."""
    if limit is None or name not in LIMITED:
        return args
    if name in ("read", "pread"):
        return (args[0], min(limit, args[1]), *args[2:])
    if name == "preadv":
        return (args[0], [memoryview(args[1][0])[:limit]], *args[2:])
    if name in ("write", "pwrite"):
        return (args[0], memoryview(args[1])[:limit], *args[2:])
    at = 2 if name == "copy_file_range" else 3
    return (*args[:at], min(limit, args[at]), *args[at + 1 :])


def _site() -> tuple[str, ...]:
    """Functions of the project that led to the call, the innermost three outside of the store."""
    found: list[str] = []
    frame: FrameType | None = sys._getframe(2)
    while frame is not None and len(found) < 3:
        name = frame.f_code.co_filename
        if name.startswith(_PROJECT):
            file = name.removeprefix(_PROJECT)
            if file not in _STORE:
                found.append(f"{file}:{frame.f_code.co_name}")
        frame = frame.f_back
    return tuple(found)
