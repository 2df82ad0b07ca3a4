"""Writing to a target: its place on a disk or in a bucket, and a file that is sent in order while it is made."""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from msgspec import Struct

from reshard.errors import StorageError
from reshard.storage.base import ON_DISK, Pieces, StoreWrapper, Traits, WriteMode
from reshard.storage.local.files import (
    has_data,
    open_new,
    open_shared,
    reserve,
    size_if_there,
    storage_errors,
    write_all,
)
from reshard.storage.location import Location, locate


class TargetPlace(Struct, frozen=True):
    """A folder for the files of a target. It can be pickled.

    Attributes:
        root: the text of the folder, a local path or a URL.
        makes_files: true if tasks make all files in it, shared ones too, and must not make the folder itself again, as in a part.
    """

    root: str
    makes_files: bool = False

    @property
    def in_place(self) -> bool:
        """True if a range of a file can be written, and written again; else files are written whole, each in one piece."""
        return traits_at(self.root).in_place


def write(
    place: TargetPlace,
    file: str,
    offset: int | None,
    data: Sequence[bytes | memoryview],
    join: Callable[[Sequence[bytes | memoryview]], bytes | memoryview] = b"".join,
) -> str:
    """Writes consecutive bytes: a whole file, or from an offset of a file that several writers share.

    Returns the version of the file, "" if files have none. ``join`` makes one piece of ``data`` for a store that does not
    write in place. Nothing is synced. A shared file must exist, unless tasks make all files.
    """
    path = f"{place.root}/{file}"
    if not place.in_place:
        return locate(path).write(join(data))
    if place.makes_files:
        fd = open_new(path, place.root)
    else:
        fd = open_new(path) if offset is None else open_shared(path)
    at = offset or 0
    try:
        reserve(fd, sum(map(len, data)), at)
        for part in data:
            write_all(fd, memoryview(part), at, path)
            at += len(part)
    finally:
        with storage_errors("close", path):
            os.close(fd)
    return ""


class FileRange(Struct, frozen=True):
    """An expected file, or a range of a file that chunks share.

    Attributes:
        offset: of the range; None for a whole file.
        nbytes: None if the size is not known.
        version: of the file; "" if it is not known, or files have none.
    """

    file: str
    offset: int | None
    nbytes: int | None
    version: str = ""


def look(root: Location) -> Callable[[FileRange], bool]:
    """A function that tests if a range is stored below a folder.

    On a disk it looks at the file: all bytes must be there, without an unwritten hole. Raises StorageError if the system refuses.
    If files have versions, the folder is listed once, here: a file appears whole, so that its version is enough.
    """
    if root.traits.has_versions:
        return partial(_is_listed, root.view())
    return partial(_is_on_disk, root.path)


def _is_on_disk(root: str, wanted: FileRange) -> bool:
    path = f"{root}/{wanted.file}"
    if wanted.offset is not None:
        return has_data(path, wanted.offset, wanted.nbytes or 0)
    found = size_if_there(path)
    return found is not None and wanted.nbytes in (None, found)


def _is_listed(root: Location, wanted: FileRange) -> bool:
    found = (root / wanted.file).status()
    if found is None or found.kind != "file":
        return False
    if wanted.offset is None and wanted.nbytes not in (None, found.nbytes):
        return False
    return wanted.version in ("", found.version)


def traits_at(place: object) -> Traits:
    """The traits of the store of a folder or file, given by a user's text.

    Invalid paths get the traits of a disk; opening them raises.
    """
    if not isinstance(place, str) or "://" not in place:
        return ON_DISK
    try:
        return locate(place).traits
    except StorageError:
        return ON_DISK


def upload_parts(traits: Traits, nbytes: int) -> int:
    """The number of parts in which a file of ``nbytes`` in pieces is uploaded; 0 if it is put whole, or written in place."""
    if traits.in_place:
        return 0
    from reshard.storage.buckets.objects import WHOLE_BYTES, part_bytes

    return 0 if nbytes <= WHOLE_BYTES else -(-nbytes // part_bytes(nbytes))


class RecordingStore(StoreWrapper, frozen=True):
    """Passes every call on, and records the versions; implements ``base.Store``.

    Attributes:
        put: the version of each written file, by its path.
    """

    put: dict[str, str]

    def write(self, path: str, data: bytes | memoryview | Pieces, how: WriteMode = "whole") -> str:
        self.put[path] = self.store.write(path, data, how)
        return self.put[path]

    def remove(self, path: str) -> None:
        self.put.pop(path, None)
        self.store.remove(path)


def recording_versions(root: Location, put: dict[str, str]) -> Location:
    """The same root, but every written file's version goes into ``put``; a root on a disk unchanged, since its files have no versions."""
    return root if root.traits.renames else Location(RecordingStore(root.store, put), root.path)


def record_version(file: Location, version: str) -> None:
    """Records a file that the store itself made as a copy of another one."""
    if isinstance(file.store, RecordingStore):
        file.store.put[file.path] = version


def first_changed(listed: Location, put: Mapping[str, str]) -> str | None:
    """The text of a file that is gone, or has another version than the one in ``put``; None if all are there.

    ``listed`` is a view of their root. Stores without versions show only missing files.
    """
    for path, version in put.items():
        found = listed.store.status(path)
        if found is None or (version and found.version != version):
            return listed.traits.text(path)
    return None


PIECE_BYTES = 8 << 20
_LOOK_S = 1.0
"""Seconds between checks that the thread still lives."""


class _AbortedError(Exception):
    """Ends an upload."""


class Upload:
    """One file in the making; used by one thread at a time. It appears when ``finish`` returns, or not at all.

    Args:
        check: called after the last byte and before the file appears; an error that it raises ends the upload.

    Attributes:
        done_bytes: number of bytes that were added.
    """

    def __init__(
        self, place: Location, nbytes: int, check: Callable[[], None] | None = None
    ) -> None:
        self.done_bytes = 0
        self._place = place
        self._nbytes = nbytes
        self._check = check
        self._piece = bytearray()
        self._pieces: queue.Queue[bytes | bytearray | None] = queue.Queue(maxsize=1)
        self._is_aborted = False
        self._version = ""
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="reshard.upload", daemon=True)
        self._thread.start()

    @property
    def is_whole(self) -> bool:
        """True if every byte was added."""
        return self.done_bytes == self._nbytes

    def write(self, data: bytes | memoryview) -> None:
        """Adds bytes, which may change afterwards; waits for a slower store. Raises the store's errors."""
        rest = memoryview(data).cast("B")
        self.done_bytes += len(rest)
        while len(rest):
            taken = rest[: PIECE_BYTES - len(self._piece)]
            self._piece += taken
            rest = rest[len(taken) :]
            if len(self._piece) == PIECE_BYTES:
                self._hand_over()

    def finish(self) -> str:
        """Ends the file after its last byte; returns its version."""
        if self._piece:
            self._hand_over()
        self._put(None)
        self._thread.join()
        self._raise()
        return self._version

    def abort(self) -> None:
        """Ends the upload early; nothing of the file is stored."""
        self._is_aborted = True
        with self._pieces.mutex:
            self._pieces.queue.clear()
            self._pieces.not_full.notify_all()
        self._put(None)
        self._thread.join()

    def _hand_over(self) -> None:
        piece, self._piece = self._piece, bytearray()
        self._put(piece)

    def _put(self, piece: bytearray | None) -> None:
        while self._thread.is_alive():
            try:
                self._pieces.put(piece, timeout=_LOOK_S)
                return
            except queue.Full:
                continue
        if piece is not None:
            self._raise()

    def _raise(self) -> None:
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        try:
            self._version = self._place.write_pieces(self._given(), self._nbytes)
        except _AbortedError:
            return
        except StorageError as error:
            self._error = self._error or error
        except BaseException as error:  # noqa: BLE001  raised again by the writing thread
            if not self._is_aborted:
                self._error = self._error or error

    def _given(self) -> Iterator[memoryview]:
        while (piece := self._pieces.get()) is not None:
            yield memoryview(piece)
        if self._is_aborted:
            raise _AbortedError
        if self._check is not None:
            self._error = _raised_by(
                self._check
            )  # against a run that has lost the target meanwhile
            if self._error is not None:
                raise _AbortedError


def _raised_by(check: Callable[[], None]) -> BaseException | None:
    """The error of a call in a thread of its own: no other request is possible within the client of a bucket."""
    with ThreadPoolExecutor(1, "reshard.check") as threads:
        return threads.submit(check).exception()
