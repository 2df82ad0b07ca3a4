"""The local file system as a store, and symbolic links in a checkpoint: followed if they stay in its folder, else refused.

A checkpoint from strangers may have a link to any file of this machine; read as a chunk, that file would end up in the output.
"""

from __future__ import annotations

import errno
import os
import re
import secrets
import stat
from collections.abc import Iterable, Iterator, Sequence
from operator import attrgetter
from pathlib import Path

from reshard.errors import FormatError, TargetExistsError
from reshard.storage.base import ON_DISK, Entry, FileStatus, OpenFile, Pieces, WriteMode
from reshard.storage.host import free_bytes
from reshard.storage.local.files import (
    close_after_reading,
    open_new,
    read_at,
    storage_error,
    storage_errors,
    write_all,
    write_file,
)
from reshard.storage.local.staging import PARTIAL, make_folders
from reshard.storage.local.syncing import fsync


class LocalStore:
    """Local files; implements ``base.Store``.

    Args:
        inside: refuses links that lead out of one folder; None follows every link.
    """

    traits = ON_DISK

    def __init__(self, inside: Inside | None = None) -> None:
        self._inside = inside

    def status(self, path: str, what: str = "") -> FileStatus | None:
        try:
            found = os.stat(path) if self._inside is None else self._inside.status(path, what)  # noqa: PTH116  of each chunk: a Path is slow
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise storage_error("look at", path, error, what) from error
        if stat.S_ISREG(found.st_mode):
            return FileStatus("file", found.st_size)
        return FileStatus("folder" if stat.S_ISDIR(found.st_mode) else "other")

    def entries(self, folder: str) -> Sequence[Entry]:
        with storage_errors("list", folder), os.scandir(folder or ".") as found:
            entries = [Entry(e.name, _is_folder(e), e.is_symlink()) for e in found]
        return sorted(entries, key=attrgetter("name"))

    def files(self, folder: str) -> Iterator[str]:
        folders = [""]
        while folders:
            below = folders.pop()
            for entry in self.entries(f"{folder}/{below}" if below else folder):
                name = f"{below}/{entry.name}" if below else entry.name
                if entry.is_folder and not entry.is_link:
                    folders.append(name)
                else:
                    yield name

    def open(self, path: str, version: str = "", what: str = "") -> OpenFile:  # noqa: ARG002  files have no versions
        if self._inside is not None:
            self._inside.check(path, what)
        try:
            # Without O_NONBLOCK a named pipe in place of a file would block the reader.
            fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as error:
            raise storage_error("read", path, error, what) from error
        try:
            mode = os.fstat(fd).st_mode
        except OSError as error:
            os.close(fd)
            raise storage_error("look at", path, error, what) from error
        if not stat.S_ISREG(mode):
            os.close(fd)
            begin = f"{what}: " if what else ""
            raise FormatError(f"{begin}{path} should be a plain file, but is not")
        return LocalFile(fd, path, what)

    def view(self, folder: str) -> LocalStore:
        return LocalStore(Inside(folder.rstrip("/") or folder, blobs_of_snapshot(folder)))

    def write(self, path: str, data: bytes | memoryview | Pieces, how: WriteMode = "whole") -> str:
        if isinstance(data, Pieces):
            _write_pieces(path, data.pieces)
        elif how == "new":
            _write_new(path, data)
        elif how == "replace":
            _replace(path, data)
        else:
            write_file(path, data)
        return ""

    def remove(self, path: str) -> None:
        with storage_errors("remove", path):
            Path(path).unlink(missing_ok=True)


LOCAL = LocalStore()


class LocalFile:
    """An open local file; implements ``base.OpenFile``."""

    __slots__ = ("_fd", "_path", "_what")

    def __init__(self, fd: int, path: str, what: str = "") -> None:
        self._fd = fd
        self._path = path
        self._what = what

    def fill(self, offset: int, out: memoryview) -> int:
        done = 0
        try:
            while done < len(out) and (got := os.preadv(self._fd, [out[done:]], offset + done)):
                done += got
        except OSError as error:
            raise storage_error("read", self._path, error, self._what) from error
        return done

    def read(self, offset: int, nbytes: int) -> bytes:
        try:
            return read_at(self._fd, nbytes, offset)
        except OSError as error:
            raise storage_error("read", self._path, error, self._what) from error

    def close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            close_after_reading(fd)


def bytes_left(path: str) -> int:
    """Bytes that may still be written at a path, which may not exist yet."""
    with storage_errors("look at", path):
        return free_bytes(Path(path).absolute())


def file_states(path: str, but: frozenset[str]) -> Iterator[str]:
    """The lines of ``Location.state``."""
    return _state(os.path.realpath(path), "", but)


def _write_pieces(path: str, pieces: Iterable[bytes | memoryview]) -> None:
    done = 0
    fd = open_new(path)
    try:
        for piece in pieces:
            write_all(fd, memoryview(piece), done, path)
            done += len(piece)
        with storage_errors("write", path):
            os.ftruncate(fd, done)  # an interrupted run may have left more
    finally:
        with storage_errors("close", path):
            os.close(fd)


def _write_new(path: str, data: bytes | memoryview) -> None:
    whole = Path(path)
    # A random name, against two processes that write it at once; the link decides which of them does.
    partial = whole.with_name(f".{whole.name}-{secrets.token_hex(8)}{PARTIAL}")
    make_folders(whole.parent)
    write_file(str(partial), data)
    fsync(partial)
    try:
        with storage_errors("publish", path):
            try:
                whole.hardlink_to(partial)
            except FileExistsError:
                raise TargetExistsError(f"{path!r} exists already and was left untouched") from None
    finally:
        partial.unlink(missing_ok=True)
    fsync(whole.parent)


def _replace(path: str, data: bytes | memoryview) -> None:
    whole = Path(path)
    partial = whole.with_name(f".{whole.name}{PARTIAL}")
    write_file(str(partial), data)
    fsync(partial)  # against a power failure after the rename, which would leave an empty file
    with storage_errors("publish", path):
        partial.replace(whole)
    fsync(whole.parent)


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link in a circle
        return False


def _state(folder: str, below: str, but: frozenset[str]) -> Iterator[str]:
    try:
        with os.scandir(folder) as found:
            entries = sorted(found, key=attrgetter("name"))
    except NotADirectoryError:
        yield f"{below}\0{_file_state(Path(folder))}"
        return
    except OSError as error:
        yield f"{below}\0{_accepted(error, folder)}"
        return
    for entry in entries:
        name = f"{below}/{entry.name}"
        if entry.name in but:
            continue
        if entry.is_dir(follow_symlinks=False):
            yield from _state(entry.path, name, but)
        else:
            yield f"{name}\0{_file_state(entry)}"


def _file_state(entry: os.DirEntry[str] | Path) -> str:
    try:
        status = entry.stat()
        link = str(Path(entry).readlink()) if entry.is_symlink() else ""
    except OSError as error:
        return str(_accepted(error, os.fspath(entry)))
    return f"{status.st_size}\0{status.st_mtime_ns}\0{link}"


def _accepted(error: OSError, path: str) -> int:
    """The error's number if nothing is there; raises StorageError if the system refuses access."""
    if error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
        raise storage_error("look at", path, error) from error
    return error.errno


_REPOSITORY = re.compile(r"(models|datasets|spaces)--.+")


class Inside:
    """A folder whose links must stay inside; the folder itself may be reached by any link.

    Args:
        root: the folder.
        also: real paths of other folders into which links may lead.

    Checked folders are remembered, so that a file costs one ``lstat``. Safe from any thread, since a second check
    is harmless.
    """

    def __init__(self, root: str | Path, also: Iterable[str] = ()) -> None:
        self._root = str(root)
        self._real = os.path.realpath(self._root)
        self._allowed = tuple([f"{folder}/" for folder in (self._real, *also)])
        self._sound = {self._root}

    def status(self, path: str, what: str) -> os.stat_result:
        """The status of a path below the folder, links followed; FormatError, naming ``what``, if it leads out."""
        folder = path[: path.rfind("/")]
        if folder not in self._sound:
            self._check_folder(folder, what)
        status = os.lstat(path)
        if not stat.S_ISLNK(status.st_mode):
            return status
        self._check_link(path, what)
        return os.stat(path)  # noqa: PTH116 - as above, without a Path

    def check(self, path: str | Path, what: str) -> None:
        """Raises FormatError as ``status`` does, and StorageError if the system refuses; a missing path is fine."""
        try:
            self.status(str(path), what)
        except (FileNotFoundError, NotADirectoryError):
            return
        except OSError as error:
            raise storage_error("look at", path, error, what) from error

    def _check_folder(self, folder: str, what: str) -> None:
        above = []
        while folder not in self._sound and folder.startswith(self._root):
            above.append(folder)
            folder = folder[: folder.rfind("/")]
        for path in reversed(above):
            if stat.S_ISLNK(os.lstat(path).st_mode):
                self._check_link(path, what)
            self._sound.add(path)

    def _check_link(self, path: str, what: str) -> None:
        real = os.path.realpath(path)
        if real != self._real and not real.startswith(self._allowed):
            # The message leaves out the link's target: the server shows it to clients.
            begin = f"{what}: " if what else ""
            raise FormatError(
                f"{begin}{path} is a symbolic link to a place outside of {self._root}; links that lead out of a "
                "checkpoint are not followed, so replace it by the file that it points to"
            )


def blobs_of_snapshot(folder: str) -> tuple[str, ...]:
    """The folder of the blobs if ``folder`` is a snapshot in the cache of huggingface_hub; else nothing.

    Every file of a snapshot is a link to a blob of its repository:
    ``models--ORG--NAME/snapshots/REVISION/FILE`` leads to ``../../blobs/HASH``.
    """
    snapshots = Path(os.path.realpath(folder)).parent
    if snapshots.name == "snapshots" and _REPOSITORY.fullmatch(snapshots.parent.name):
        return (f"{snapshots.parent}/blobs",)
    return ()
