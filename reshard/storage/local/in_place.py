"""A folder of weights that is changed where it is: its files are out of sight while they are neither the old version nor the new.

::

    BASE/.reshard-in-place/redo.partial     the journal in the making: nothing has changed yet
    BASE/.reshard-in-place/redo             the journal, whole and on the device: from here on the change is made, by whichever run
    BASE/.reshard-in-place/*.safetensors    the files, from before the first byte changes until the last one is on the device
    BASE/.reshard-in-place/done             they are the new version

A file is in one of the two folders at every moment. Programs that look for weights in BASE find none or all of them, and this project's readers
refuse BASE while ``redo`` is there.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType

from msgspec import Struct

from reshard.errors import CorruptError, MissingError, PlanError, StorageError
from reshard.storage.local.files import read_at, storage_errors, write_all
from reshard.storage.local.store import LOCAL, LocalStore
from reshard.storage.local.syncing import fsync
from reshard.storage.location import Location

HIDDEN = ".reshard-in-place"

_JOURNAL, _DONE = "redo", "done"

PARTIAL_JOURNAL = "redo.partial"

_WEIGHTS = ".safetensors"

_CHANGING = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
"""O_NONBLOCK: opening a pipe in the place of a file does not wait."""


class InPlace(Struct, frozen=True):
    """The folder that is changed, without links in its path.

    Attributes:
        root: the folder.
        hidden: the folder in it that has the journal, and the files while they change.
    """

    root: Path
    hidden: Path

    @property
    def place(self) -> Location:
        """The folder, for readers."""
        return Location(LOCAL, str(self.root))

    @property
    def journal(self) -> Location:
        """The journal, whole."""
        return Location(LOCAL, str(self.hidden / _JOURNAL))

    @property
    def is_begun(self) -> bool:
        """Whether a run has decided to make the change."""
        return _is_there(self.hidden / _JOURNAL)

    @property
    def is_done(self) -> bool:
        """Whether every byte is changed."""
        return _is_there(self.hidden / _DONE)


def in_place(place: Location) -> InPlace:
    """A folder on a disk; a link to one is followed.

    Raises PlanError for a bucket, a file, or nothing at all; StorageError where something else has the hidden folder's name.
    """
    if not isinstance(place.store, LocalStore):
        raise PlanError(
            f"{place} is in a bucket, where no file can be changed in place; give a local folder, or name a target"
        )
    root = Path(os.path.realpath(place.path))
    found = place.status()
    if found is None or found.kind != "folder":
        what = "not there" if found is None else "no folder"
        raise PlanError(
            f"{place} is {what}, but what is changed in place is a local folder of safetensors files; give the folder, or name a target"
        )
    where = InPlace(root, root / HIDDEN)
    if _is_there(where.hidden) and not _is_own_folder(where.hidden):
        raise StorageError(
            f"{str(where.hidden)!r} should be a folder of reshard, but is something else; remove it, and run again"
        )
    return where


def is_between_versions(place: Location) -> bool:
    """Whether a folder on a disk, or that of a file, is being changed in place, or was when its run was interrupted."""
    if not place.traits.renames:
        return False
    below = f"{HIDDEN}/{_JOURNAL}"
    return (place / below).exists() or (
        (place.parent / below).exists() and not (place.is_folder() and place.name != HIDDEN)
    )


def check_changeable(where: InPlace, files: Sequence[str]) -> None:
    """Refuses files that are not this folder's alone: links, and names of a file that has others. Each is opened for writing.

    Raises StorageError.
    """
    for name in files:
        path = where.root / name
        with storage_errors("write", path):
            status = os.lstat(path)
        if not stat.S_ISREG(status.st_mode):
            kind = "a symbolic link" if stat.S_ISLNK(status.st_mode) else "no plain file"
            raise StorageError(
                f"{str(path)!r} is {kind}, so that changing it in place may change what others read; copy the folder with its content "
                "(cp -rL) and give the copy, or choose a target of its own"
            )
        if status.st_nlink > 1:
            raise StorageError(
                f"{str(path)!r} has {status.st_nlink} names (hard links), and changing it in place would change it under all of them; copy the "
                "folder and give the copy, or choose a target of its own"
            )
        FileInPlace(str(path)).close()


def prepare_change(where: InPlace) -> None:
    """Makes the hidden folder."""
    with storage_errors("create", where.hidden):
        where.hidden.mkdir()
    fsync(where.root)


def forget_change(where: InPlace) -> None:
    """Removes the hidden folder of a run that has changed nothing, or has ended, if it is there.

    Raises StorageError where it has weights, which are never removed.
    """
    if _is_there(where.hidden):
        _remove_rest(where)
        fsync(where.root)


def decide_change(where: InPlace) -> None:
    """Decides the change: the journal is on the device, and whole."""
    partial = where.hidden / PARTIAL_JOURNAL
    fsync(partial)
    with storage_errors("rename", partial):
        partial.rename(where.hidden / _JOURNAL)
    fsync(where.hidden)


def take_away(where: InPlace, files: Sequence[str], records: Sequence[str]) -> None:
    """Moves the files out of sight, in their order, the index first, and removes the records that will not fit them.

    Those that are out of sight already stay. Raises StorageError for a file that is in both folders, MissingError where it is in none.
    """
    for number, name in enumerate(files):
        _hide(where, name)
        if not number:  # no index names a file that is gone, not even after a power cut
            _sync_both(where)
    for name in records:
        with storage_errors("remove", where.root / name):
            (where.root / name).unlink(missing_ok=True)
    _sync_both(where)


def _hide(where: InPlace, name: str) -> None:
    old, new = where.root / name, where.hidden / name
    is_here, is_hidden = _is_there(old), _is_there(new)
    if is_here and is_hidden:
        raise StorageError(
            f"{str(old)!r} was put there while the folder is between two versions, and the file that is changed is {str(new)!r}; move the "
            "first away, and run again"
        )
    if not (is_here or is_hidden):
        raise MissingError(
            f"{str(old)!r} is gone while the folder is between two versions; copy it there from the version before, and run again"
        )
    if is_here:
        _move(old, new)


def _sync_both(where: InPlace) -> None:
    fsync(where.hidden)
    fsync(where.root)


def mark_done(where: InPlace, files: Sequence[str]) -> None:
    """Syncs the files, and then says that they are the new version."""
    for name in files:
        fsync(where.hidden / name)
    Location(LOCAL, str(where.hidden / _DONE)).replace(b"")


def put_back(where: InPlace, files: Sequence[str], written: Mapping[str, bytes]) -> None:
    """Moves the files back, then writes others beside them, the last of which is the index; each is durable before the next."""
    for name in files:
        old, new = where.hidden / name, where.root / name
        if _is_there(old):  # else it is back already
            if _is_there(new):
                raise StorageError(
                    f"{str(new)!r} was put there while the folder is between two versions, and its new version is {str(old)!r}; move the "
                    "first away, and run again"
                )
            _move(old, new)
    fsync(where.root)
    for name, data in written.items():
        Location(LOCAL, str(where.root / name)).replace(data)


def end_change(where: InPlace) -> None:
    """Ends the change: without its journal the folder is a checkpoint like others."""
    with storage_errors("remove", where.hidden / _JOURNAL):
        (where.hidden / _JOURNAL).unlink()
    fsync(where.hidden)
    forget_change(where)


class FileInPlace:
    """A file that is read and written; never through a link."""

    def __init__(self, path: str) -> None:
        self._path = path
        with storage_errors("write", path):
            self._fd = os.open(path, _CHANGING)

    def __enter__(self) -> FileInPlace:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def read(self, offset: int, nbytes: int) -> bytearray:
        """Bytes from ``offset``; CorruptError where the file ends before."""
        with storage_errors("read", self._path):
            data = read_at(self._fd, nbytes, offset)
        if len(data) < nbytes:
            raise CorruptError(
                f"{self._path} should have {offset + nbytes:,} bytes, but ends at {offset + len(data):,}; restore it from the version before, and "
                "run again"
            )
        return bytearray(data)

    def write(self, offset: int, data: memoryview) -> None:
        """Writes all of ``data`` at ``offset``."""
        write_all(self._fd, data, offset, self._path)

    def close(self) -> None:
        """Closes it. StorageError where the system says only now that a write failed."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            with storage_errors("close", self._path):
                os.close(fd)


def open_changed(where: InPlace, file: str) -> FileInPlace:
    """A file that is out of sight."""
    return FileInPlace(str(where.hidden / file))


def _move(old: Path, new: Path) -> None:
    with storage_errors("move", old):
        old.rename(new)


def _remove_rest(where: InPlace) -> None:
    with storage_errors("remove", where.hidden):
        names = sorted(path.name for path in where.hidden.iterdir())
    kept = [name for name in names if name.endswith(_WEIGHTS)]
    if kept or _JOURNAL in names:
        raise StorageError(
            f"{str(where.hidden)!r} has {', '.join(kept[:4]) or _JOURNAL}, though no change in place is recorded there; move what you need out "
            "of that folder, remove it, and run again"
        )
    with storage_errors("remove", where.hidden):
        for name in names:
            (where.hidden / name).unlink()
        where.hidden.rmdir()


def _is_own_folder(path: Path) -> bool:
    with storage_errors("look at", path):
        return stat.S_ISDIR(os.lstat(path).st_mode)


def _is_there(path: Path) -> bool:
    with storage_errors("look at", path):
        try:
            os.lstat(path)
        except (FileNotFoundError, NotADirectoryError):
            return False
    return True
