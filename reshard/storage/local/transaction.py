"""A transaction on the local file system: a staging folder beside the target, with the folders of parts below it, and one rename.

The folder is locked by one process (``staging``), the records are a journal in it, and the commit is the
rename of ``publishing``.

The file of its records has checked lines; the first one names the run::

    {"format": "reshard.journal", "version": 2, "identity": {…}, "host": "…", "boot": "…", "root": 4711}
    a record
    …

Nothing is synced: while the host runs, bytes written before a line are in its memory or on the device.

A finished folder is the same one if its inode and the digest of its record are the same. It is renamed to a hidden name beside it and
then removed, so that no reader sees half of it. A file is the same one if its inode, its size and its time are. The files of a
prefix are removed under the lock: the index first, so that no reader takes the others for a checkpoint, the record last.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from msgspec import Struct, to_builtins
from msgspec.structs import replace

from reshard.errors import ResumeError, StorageError
from reshard.storage.checked_lines import JOURNAL, JOURNAL_VERSION, LineFile, read_lines
from reshard.storage.host import boot_id, host_name
from reshard.storage.local.files import size_if_there, storage_errors, write_file
from reshard.storage.local.publishing import is_linked, publish, remove_files, unlink_files
from reshard.storage.local.staging import (
    FILES_OF_PREFIX,
    STAGED_PREFIX,
    Staging,
    dissolve,
    emptied,
    lock_staging,
    locked,
    make_folders,
    staging_for,
    stamped,
)
from reshard.storage.local.store import LOCAL
from reshard.storage.local.syncing import forget_cached, fsync, sync_tree
from reshard.storage.location import Location
from reshard.storage.transaction import CheckReplaced, Earlier, Prove

PARTS_REQUEST = "parts/request"
"""The file that all parts of a conversion share; ``storage.parts`` writes it."""


@contextmanager
def lock_folder(target: Path, file: str = "") -> Iterator[LocalTransaction]:
    """The transaction of a target, as the last run left it; no other run can have it in the block.

    ``file`` names the file below the root that becomes the target; "" if the root itself does, ``FILES_OF_PREFIX`` if
    several do. Raises TargetBusyError, naming the holder, if another live process holds it.
    """
    with lock_staging(target, file) as staging:
        yield LocalTransaction(staging)


class LocalTransaction:
    """A held staging folder; implements ``transaction.Transaction``."""

    def __init__(self, staging: Staging) -> None:
        self._staging = staging
        self._journal: LineFile | None = None
        self._marks: tuple[str, ...] = ()

    @property
    def target(self) -> str:
        return str(self._staging.target)

    @property
    def place(self) -> str:
        return str(self._staging.folder)

    @property
    def root(self) -> Location:
        return Location(LOCAL, str(self._staging.root))

    @property
    def _root(self) -> Path:
        return self._staging.root

    def check(self) -> None:
        """Does nothing: the lock lasts as long as this process."""

    def left_by(self) -> Mapping[str, Any] | None:
        header = read_journal_header(self._staging.journal)
        return None if header is None else header.made_by

    def has_parts(self) -> bool:
        return size_if_there(self._staging.folder / PARTS_REQUEST) is not None

    def earlier(self) -> Earlier | None:
        header = read_journal_header(self._staging.journal)
        # A link in place of the folder may lead to files of others.
        if header is None or not self._root.is_dir() or self._root.is_symlink():
            return None
        if not self._is_own(header) or next(self.records(), None) is None:
            return None
        # Against a power failure: records and files that were not synced are sure only within one boot.
        is_same_boot = bool(header.boot) and (header.host, header.boot) == (host_name(), boot_id())
        return Earlier(header.made_by, is_same_boot, self._staging.journal.stat().st_mtime_ns)

    def records(self) -> Iterator[bytes]:
        return read_records(self._staging.journal)

    def begin(self, made_by: Mapping[str, Any]) -> None:
        unlink_files(self._staging)
        self._staging = emptied(self._staging)
        self._journal = new_journal(self._staging.journal, self._header(made_by))

    def keep_files(self) -> None:
        unlink_files(self._staging)  # files that are written again must get their names again
        self._staging = stamped(self._staging)

    def rewrite(self, made_by: Mapping[str, Any], records: Iterable[str]) -> None:
        path, old = self._staging.next_journal, self._staging.journal
        with ExitStack() as on_error:
            journal = new_journal(path, self._header(made_by))
            on_error.callback(journal.close)
            for record in records:
                journal.append(record)
            fsync(path)  # against a power failure that keeps the new name and loses the records
            with storage_errors("replace", old):
                path.replace(old)
            on_error.pop_all()
        self._journal = journal

    def append(self, record: str) -> None:
        if self._journal is None:
            raise RuntimeError("records are appended between begin and close")
        self._journal.append(record)

    def close(self) -> None:
        journal, self._journal = self._journal, None
        if journal is not None:
            journal.close()

    def files(self) -> Iterator[str]:
        return self.root.files()

    def remove(self, file: str, offset: int | None = None, /) -> None:
        if offset is None:
            (self.root / file).remove()

    def mark(self, files: Mapping[str, bytes]) -> None:
        self._marks = tuple(files)
        for name, data in files.items():
            write_file(str(self._root / name), data)

    def written(self) -> Location:
        sync_tree(self._root)
        forget_cached(self._root)
        return self.staged()

    def staged(self) -> Location:
        name = STAGED_PREFIX if self._staging.is_prefix else self._staging.file
        return self.root / name if name else self.root

    def commit(
        self,
        *,
        overwrite: bool,
        check: CheckReplaced | None = None,
        prove: Prove | None = None,  # noqa: ARG002  files on a disk have no versions
    ) -> None:
        publish(self._staging, overwrite=overwrite, check=check, last=self._marks)

    def is_committed(self) -> bool:
        if self._staging.is_prefix:
            return bool(self._marks) and is_linked(self._staging, self._marks)
        try:
            header = read_journal_header(self._staging.journal)
            # The inode tells this run's output from one that another program put there.
            return header is not None and os.lstat(self.target).st_ino == header.root
        except (StorageError, ResumeError, OSError):
            return False

    def unpublish(self, _index: str, /) -> None:
        self._staging = emptied(self._staging)
        with storage_errors("remove", self._staging.target):
            self._staging.target.rename(self._staging.root)
        fsync(self._staging.target.parent)

    def abort(self) -> None:
        with suppress(StorageError):
            unlink_files(self._staging)
        dissolve(self._staging)

    def _header(self, made_by: Mapping[str, Any]) -> JournalHeader:
        root = self._staging.stamp[1] if self._staging.stamp else 0
        return JournalHeader(made_by, host_name(), boot_id(), root)

    def _is_own(self, header: JournalHeader) -> bool:
        """True if the journal belongs to the folder or file that is there.

        An overwritten target changed places with the output, and does not belong to the journal. A file that has the target's
        name, too, is published.
        """
        try:
            status = os.lstat(self._staging.published)
        except FileNotFoundError:
            return False
        is_file = self._staging.published != self._root
        is_published = is_file and status.st_nlink > 1
        return status.st_ino == header.root and not is_published


def part_staging(target: Path, name: str) -> Staging:
    """The staging paths of a part, a folder even if the whole target is one file; nothing is made."""
    whole = staging_for(target)
    folder = whole.folder / "parts" / name
    return replace(whole, folder=folder, root=folder / "checkpoint")


@contextmanager
def lock_part_folder(target: Path, name: str, run: str = "") -> Iterator[PartFolder]:
    """The transaction of a part; no other process has its folder in the block. ``run``: as of ``PartFolder``."""
    staging = part_staging(target, name)
    make_folders(staging.folder.parent)
    with locked(staging) as locked_target:
        yield PartFolder(locked_target, run)


class PartFolder(LocalTransaction):
    """A held part. Its root has the name of the run that writes it.

    Against a run that was presumed dead and lives on: the root is renamed when another run takes the part over. The first one then
    finds no folder, and makes none.
    """

    def __init__(self, staging: Staging, run: str) -> None:
        self._earlier = next(iter(sorted(staging.folder.glob(f"{staging.root.name}*"))), None)
        own = staging.root.with_name(f"{staging.root.name}-{run}") if run else None
        super().__init__(replace(staging, root=self._earlier or own or staging.root))
        self._own = own or self._root
        self._is_begun = False

    def begin(self, made_by: Mapping[str, Any]) -> None:
        self._rename()
        super().begin(made_by)

    def keep_files(self) -> None:
        self._rename()
        super().keep_files()

    def abort(self) -> None:
        # Against a run that was presumed dead and lives on: the journal and the lock that are there now are another run's.
        if not self._is_begun or self._root.is_dir():
            super().abort()

    def _rename(self) -> None:
        self._is_begun = True
        if self._earlier not in (None, self._own):
            with storage_errors("rename", self._root):
                self._root.rename(self._own)
        self._staging = replace(self._staging, root=self._own)


def remove_part_folders(target: Path) -> None:
    """Removes the folder of all parts of a target; a process that still writes there finds no folder."""
    folder = staging_for(target).folder / "parts"
    dead = folder.with_name(f"dead-parts-{os.getpid()}")
    with storage_errors("remove", folder), suppress(FileNotFoundError):
        folder.rename(dead)  # against a part that makes a file while the folder is emptied
    shutil.rmtree(dead, ignore_errors=True)
    with suppress(OSError):  # the folder has other content
        folder.parent.rmdir()


class JournalHeader(Struct, frozen=True, rename={"made_by": "identity"}):
    """The owner of a journal.

    Attributes:
        made_by: the run, as it describes itself.
        host, boot: the host that wrote its lines, and the boot of its kernel.
        root: inode of the folder or file that becomes the target.
    """

    made_by: Mapping[str, Any]
    host: str
    boot: str
    root: int


def new_journal(path: Path, header: JournalHeader) -> LineFile:
    """A new journal with its first line, open for appending."""
    lines = LineFile(path)
    document = {"format": JOURNAL, "version": JOURNAL_VERSION, **to_builtins(header)}
    try:
        lines.append(json.dumps(document, sort_keys=True))
    except BaseException:
        lines.close()
        raise
    return lines


def read_journal_header(path: Path) -> JournalHeader | None:
    """The header of the journal at ``path``; None if none can be read.

    Raises ResumeError if another version of this program wrote it: that version can resume it.
    """
    for line in read_lines(path):
        try:
            document = json.loads(line)
            if document.pop("format") != JOURNAL:
                return None
            _check_version(document.pop("version"), path)
            return _checked(**document)
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            return None
    return None


def read_records(path: Path) -> Iterator[bytes]:
    """The lines after the header, up to the first damaged one."""
    lines = read_lines(path)
    next(lines, None)
    return lines


def _check_version(version: Any, path: Path) -> None:
    if version != JOURNAL_VERSION:
        raise ResumeError(
            f"an unfinished run was recorded by another version of reshard: {str(path)!r} has version {version!r}, "
            f"expected {JOURNAL_VERSION}; resume with that version, or start over (restart)"
        )


def _checked(identity: dict[str, Any], host: str, boot: str, root: int) -> JournalHeader:
    if type(root) is not int or type(identity) is not dict:
        raise TypeError("a field of the wrong kind")
    if not all(isinstance(text, str) for text in (host, boot)):
        raise TypeError("a field of the wrong kind")
    return JournalHeader(identity, host, boot, root)


def stamp_on_disk(output: Path, records: Sequence[str]) -> str | None:
    """The stamp of a folder, of a file, or of files with this prefix if nothing has the name itself."""
    if not os.path.lexists(output):
        beside = _record_beside(output, records)
        return _stamp_of(beside, beside)
    if (of_file := _stamp_of_file(output)) is not None:
        return of_file
    there = (output / record for record in records if (output / record).exists())
    return _stamp_of(output, next(there, output / records[-1]))


def remove_from_disk(output: Path, stamp: str, records: Sequence[str], aside: str) -> bool:
    """Removes an output after renaming it to ``aside``; an interrupted removal may have left it there."""
    hidden = output.with_name(aside)
    _remove_hidden(hidden)
    if stamp_on_disk(output, records) != stamp:
        return False
    if not os.path.lexists(output):
        return _remove_prefix(output, stamp, records)
    with storage_errors("rename", output):
        output.rename(hidden)
    # Against a program that put another folder there between the look and the rename.
    if stamp_on_disk(hidden, records) != stamp:
        with storage_errors("rename", hidden):
            hidden.rename(output)
        return False
    _remove_hidden(hidden)
    return True


def _record_beside(prefix: Path, records: Sequence[str]) -> Path:
    return prefix.with_name(f"{prefix.name}.{records[0]}")


def _stamp_of_file(output: Path) -> str | None:
    """The stamp of a plain file; None for anything else."""
    try:
        found = output.lstat()
    except OSError:
        return None
    if not stat.S_ISREG(found.st_mode):
        return None
    return f"{found.st_ino}-{found.st_size}-{found.st_mtime_ns}"


def _stamp_of(kept: Path, record: Path) -> str | None:
    """The stamp of ``kept``: its inode, and the digest of its record."""
    try:
        inode = kept.lstat().st_ino
        content = record.read_bytes()
    except OSError:
        return None
    return f"{inode}-{hashlib.sha256(content).hexdigest()}"


def _remove_prefix(prefix: Path, stamp: str, records: Sequence[str]) -> bool:
    with lock_folder(prefix, FILES_OF_PREFIX) as locked_target:
        is_same = stamp_on_disk(prefix, records) == stamp
        if is_same:
            remove_files(prefix, _record_beside(prefix, records).name)
        locked_target.abort()
    return is_same


def _remove_hidden(hidden: Path) -> None:
    with storage_errors("remove", hidden):
        if _stamp_of_file(hidden) is None:
            remove_tree(hidden)
        else:
            hidden.unlink(missing_ok=True)


def remove_tree(folder: Path) -> None:
    """Removes a folder if it exists; another process may remove it at the same time. Raises OSError if it cannot be removed."""
    try:
        shutil.rmtree(folder)
    except (FileNotFoundError, NotADirectoryError):
        if folder.exists():
            shutil.rmtree(folder)
