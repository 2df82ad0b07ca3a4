"""Local files: reads and writes at offsets; every OSError becomes a StorageError here."""

from __future__ import annotations

import ctypes
import errno
import os
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import cache
from pathlib import Path
from types import TracebackType

from reshard.errors import ForbiddenError, ReshardError, StorageError

_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | getattr(os, "O_CLOEXEC", 0)

WRITE_BYTES = 256 << 10
"""Smaller writes take the interpreter's lock more often. Larger writes need larger free blocks of kernel memory,
which virtual machines have often returned to their host; then each page costs a call to the host."""

_REMEDY = {
    errno.ENOSPC: "free space on that file system (or choose another) and run the same command again",
    errno.EDQUOT: "raise the quota or free space and run the same command again",
    errno.EACCES: "grant this user the permission",
    errno.EPERM: "grant this user the permission",
    errno.EFBIG: "raise the limit of file sizes (ulimit -f), or write smaller files (chunk_bytes)",
    errno.ENAMETOOLONG: "choose a shorter name",
    errno.ELOOP: "remove the symbolic link in its place",
    errno.ENOTDIR: "a part of the path is a file; choose another path",
    errno.EROFS: "choose a target on a writable file system",
    errno.ENOENT: "check the path; something may have removed it meanwhile",
    errno.EMFILE: "raise the limit of open files (ulimit -n)",
    errno.ENFILE: "the whole machine has too many files open; close some and run again",
    errno.ENOLCK: "choose a target on a file system that keeps locks",
    errno.EOPNOTSUPP: "choose a target on a file system that can do this",
    errno.EIO: "the device reports a read or write error; check it before trusting it again",
    errno.ESTALE: "its server removed or replaced it; check the path and the mount, then run again",
}

_OTHER_REMEDY = "remove that cause and run again"


def storage_error(action: str, path: str | Path, error: OSError, what: str = "") -> StorageError:
    """``error`` as a StorageError that names the action, the path, the reason and the remedy.

    ``what``, the purpose of the file, comes first.
    """
    begin = f"{what}: " if what else ""
    kind = ForbiddenError if isinstance(error, PermissionError) else StorageError
    return kind(f"{begin}cannot {action} {str(path)!r}: {reason_and_remedy(error)}")


def reason_and_remedy(error: OSError) -> str:
    """The system's reason, and the remedy: the end of a message."""
    reason = error.strerror or str(error) or type(error).__name__
    return f"{reason}; {_REMEDY.get(error.errno or 0, _OTHER_REMEDY)}"


@contextmanager
def storage_errors(action: str, path: str | Path) -> Iterator[None]:
    """Turns an OSError in the block into a StorageError about ``path``."""
    try:
        yield
    except ReshardError:  # some are OSErrors, and their messages are complete
        raise
    except OSError as error:
        raise storage_error(action, path, error) from error


def size_if_there(path: str | Path) -> int | None:
    """The size of the file at ``path``, links not followed; None if there is nothing.

    StorageError if the system refuses access, which does not prove that nothing is there.
    """
    with storage_errors("look at", path):
        try:
            return os.lstat(path).st_size
        except (FileNotFoundError, NotADirectoryError):
            return None


def has_data(path: str, offset: int, nbytes: int) -> bool:
    """True if the file at ``path`` has all of these bytes, without an unwritten hole.

    A file system that records no holes counts every byte within the file's size as written.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        raise storage_error("look at", path, error) from error
    try:
        with storage_errors("look at", path):
            if os.fstat(fd).st_size < offset + nbytes:
                return False
            # A hole: the run was killed between the growth of a shared file and the write of this range.
            return not nbytes or os.lseek(fd, offset, os.SEEK_HOLE) >= offset + nbytes
    finally:
        close_after_reading(fd)


_KEEP_SIZE = 1
"""``FALLOC_FL_KEEP_SIZE``: until it is written, the file must not look as if it were."""


RESERVED_BYTES = 1 << 20
"""Smaller ranges are not reserved: they are one or two writes."""


def reserve(fd: int, nbytes: int, offset: int) -> None:
    """Asks the file system for the blocks of a large range before it is written in runs.

    They lie together then, and a write takes two thirds of the time (measured, ext4). It is only a wish. glibc's ``posix_fallocate``
    would write to each block itself where the file system cannot reserve, so the system is called without it.
    """
    if nbytes >= RESERVED_BYTES and hasattr(libc(), "fallocate"):  # Linux alone
        libc().fallocate(fd, _KEEP_SIZE, ctypes.c_int64(offset), ctypes.c_int64(nbytes))


def write_all(fd: int, data: memoryview, offset: int, path: str) -> None:
    """Writes all of ``data`` (contiguous bytes) at ``offset``; a short write is continued."""
    done = 0
    try:
        while done < len(data):
            written = os.pwrite(fd, data[done : done + WRITE_BYTES], offset + done)
            if written == 0:
                raise OSError(errno.EIO, "the system wrote nothing and gave no reason")
            done += written
    except OSError as error:
        raise storage_error("write", path, error) from error


def write_file(path: str, data: bytes | memoryview) -> None:
    """Writes a whole file, replacing an existing one; nothing is synced."""
    with storage_errors("write", path):
        handle = os.open(path, _NEW_FILE, 0o666)
        try:
            view = memoryview(data).cast("B")
            while view.nbytes:
                view = view[os.write(handle, view) :]
        finally:
            os.close(handle)


def make_folder(path: str) -> None:
    """Makes a folder and missing parents; an existing folder is fine."""
    with storage_errors("make the folder", path):
        try:
            os.mkdir(path)  # noqa: PTH102 - called a hundred thousand times; a Path would be slow
        except FileExistsError:
            pass
        except FileNotFoundError:
            Path(path).mkdir(parents=True, exist_ok=True)


def read_at(fd: int, nbytes: int, offset: int) -> bytes:
    """``nbytes`` bytes from ``offset``, fewer only at the file's end; a short read is continued."""
    data = os.pread(fd, nbytes, offset)
    if not data or len(data) == nbytes:
        return data
    parts, done = [data], len(data)
    while done < nbytes and (data := os.pread(fd, nbytes - done, offset + done)):
        parts.append(data)
        done += len(data)
    return b"".join(parts)


def close_after_reading(fd: int) -> None:
    """Closes a file that was only read; errors are ignored, since the bytes were read already."""
    with suppress(OSError):
        os.close(fd)


class OpenFiles:
    """Files open for writing below a folder, made on first use; the oldest is closed beyond ``limit``.

    ``makes_files``: the folder exists, must not be made again if it is gone, and has no shared files yet.
    """

    def __init__(self, root: str, limit: int, *, makes_files: bool = False) -> None:
        self._root = root
        self._limit = limit
        self._must_be_there = root if makes_files else ""
        self._fds: OrderedDict[str, int] = OrderedDict()

    def fd(self, file: str, *, is_shared: bool = False) -> int:
        """A descriptor for ``file`` (relative to the folder).

        A missing file is made with its parent folders. A shared file must exist, unless ``makes_files``: the writer made it before.
        """
        if file in self._fds:
            self._fds.move_to_end(file)
            return self._fds[file]
        while len(self._fds) >= self._limit:
            self._close(self._fds.popitem(last=False))
        path = self.path(file)
        fd = self._fds[file] = (
            open_shared(path)
            if is_shared and not self._must_be_there
            else open_new(path, self._must_be_there)
        )
        return fd

    def path(self, file: str) -> str:
        return f"{self._root}/{file}"

    def __enter__(self) -> OpenFiles:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with ExitStack() as closing:
            for item in self._fds.items():
                closing.callback(self._close, item)
            self._fds.clear()

    def _close(self, item: tuple[str, int]) -> None:
        with storage_errors("close", self.path(item[0])):
            os.close(item[1])


def open_new(path: str, root: str = "") -> int:
    """Opens ``path`` for writing, making it and its parents if missing; never through a link.

    The folder ``root``, if one is given, must exist: a task whose run is over must not make it again.
    """
    # O_NOFOLLOW: against a link that leads out of the target.
    flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    with storage_errors("create", path):
        try:
            return os.open(path, flags, 0o666)
        except FileNotFoundError:
            make_parents(path, root)
            return os.open(path, flags, 0o666)


def make_parents(path: str, root: str) -> None:
    """Makes missing folders above ``path``, but neither ``root`` nor folders above it."""
    parent = path.rpartition("/")[0]
    if root and len(parent) <= len(root):  # against a task whose run is over and has removed it
        return
    try:
        os.mkdir(parent)  # noqa: PTH102 - called for each tensor; a Path would be slow
    except FileExistsError:
        return
    except FileNotFoundError:
        if parent in ("", root):
            raise
        make_parents(parent, root)
        with suppress(FileExistsError):
            os.mkdir(parent)  # noqa: PTH102  paths are text here


def open_shared(path: str) -> int:
    """Opens an existing file for writing; never through a link."""
    with storage_errors("write", path):
        try:
            return os.open(path, os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except FileNotFoundError as error:
            raise StorageError(
                f"cannot write {path!r}: the file was made before the tasks began, but is not there; leave that folder alone, "
                "give only executors whose workers share this file system, and run again"
            ) from error


@cache
def libc() -> ctypes.CDLL:
    """The C library, for the few calls that Python does not offer."""
    return ctypes.CDLL(None, use_errno=True)
