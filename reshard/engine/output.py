"""The output for the chunks of a target: TargetOutput, and TaskOutput, the part that tasks need.

Files that chunks share are sent by ``Uploads`` if the store does not write in place: each in order, as its chunks are made.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from reshard.errors import VerificationError
from reshard.formats.contents import Encoding
from reshard.formats.file_map import FileMap, Place, SharedFile, StoredRanges
from reshard.geometry.grid import Box, Index
from reshard.storage.location import Location
from reshard.storage.target import TargetPlace, Upload

if TYPE_CHECKING:
    import numpy.typing as npt


Put = Callable[[str, "tuple[int, ...]", "bytes | memoryview"], None]
"""Stores a whole chunk: tensor, index, and the encoded bytes."""

Keep = Callable[[str, Box, "npt.NDArray[Any]"], None]
"""Takes elements of a raw target in memory: tensor, box of it, and the box's elements, which change after the call."""


class TaskOutput(TargetPlace, frozen=True):
    """The output of a task; it is sent to the workers with every batch.

    Attributes:
        root, makes_files: as in TargetPlace; the staging folder if there is one.
        put: stores whole chunks if the target is not made of plain files.
        name: of the target in errors, if a run has several; None if it has one.
        uploads: writes the files that chunks share if the store does not write in place.
        keep: takes the elements if the target has no files at all; only in this process.
    """

    put: Put | None = None
    name: str | None = None
    uploads: Uploads | None = None
    keep: Keep | None = None


class TargetOutput(Struct, frozen=True):
    """The output for the chunks of a target, and their encodings.

    Attributes:
        files: that make up the target.
        encodings: of the target's tensors, by name.
        root: text of the folder below which chunk files are written, a local path or a URL.
        name, uploads, keep, makes_files: as in TaskOutput.
    """

    files: FileMap
    encodings: Mapping[str, Encoding]
    root: str
    name: str | None = None
    uploads: Uploads | None = None
    keep: Keep | None = None
    makes_files: bool = False

    def places(self, tensor: str, index: Index) -> tuple[Place, ...]:
        """The places of a chunk below ``root``; none if a database stores it."""
        return self.files.places(tensor, index)

    @property
    def of_tasks(self) -> TaskOutput:
        """The part that tasks need."""
        put = None if self.files.database is None else self.files.database.put
        return TaskOutput(
            self.root,
            put=put,
            name=self.name,
            uploads=self.uploads,
            keep=self.keep,
            makes_files=self.makes_files,
        )


class _SharedUpload:
    """The upload of one file, with its head and its inserts among the chunks."""

    def __init__(self, file: SharedFile, upload: Upload) -> None:
        self.upload = upload
        self._file = file
        self._inserts = list(reversed(file.inserts))
        self._ranges = StoredRanges(file.crc)

    def begin(self) -> None:
        """Writes the bytes before the first chunk."""
        self.upload.write(self._file.head)
        self._insert()

    def write(self, parts: Sequence[bytes | memoryview]) -> None:
        """Adds a chunk, and the bytes between it and the next."""
        start, crc = self.upload.done_bytes, 0
        for part in parts:
            self.upload.write(part)
            if self._inserts:
                crc = self._file.crc.of(part, crc)
        if self._inserts:
            self._ranges.add(start, self.upload.done_bytes - start, crc)
            self._insert()

    def _insert(self) -> None:
        while self._inserts and self._inserts[-1].offset == self.upload.done_bytes:
            self.upload.write(self._inserts.pop().make(self._ranges))


class Uploads:
    """The uploads of one target, for all threads of a run; each file is written by one of them at a time.

    A file's first chunk begins its upload, and its last byte ends it.

    Attributes:
        check: called before a file appears; an error that it raises ends the upload, and nothing of it is stored.
    """

    check: Callable[[], None] | None = None

    def __init__(self, root: Location, shared_file: Callable[[str], SharedFile]) -> None:
        self._root = root
        self._shared_file = shared_file
        self._open: dict[str, _SharedUpload] = {}
        self._lock = threading.Lock()

    def write(self, place: Place, parts: Sequence[bytes | memoryview]) -> str:
        """Adds a chunk, which must be the next of its file; returns the file's version once it is complete, else ""."""
        shared = self._begun(place.file)
        upload = shared.upload
        if upload.done_bytes != place.start:
            raise VerificationError(
                f"a chunk at {place.start} of {self._root / place.file} was made after the first {upload.done_bytes} bytes; this is a "
                "defect of the program, please report it with the plan"
            )
        shared.write(parts)
        if not upload.is_whole:
            return ""
        version = upload.finish()
        with self._lock:
            del self._open[place.file]
        return version

    def abort(self) -> None:
        """Ends the uploads that are not complete; nothing of them is stored."""
        with self._lock:
            opened, self._open = list(self._open.values()), {}
        for shared in opened:
            shared.upload.abort()

    def _begun(self, file: str) -> _SharedUpload:
        with self._lock:
            found = self._open.get(file)
            if found is None:
                shared = self._shared_file(file)
                upload = Upload(self._root / file, shared.nbytes, self.check)
                found = self._open[file] = _SharedUpload(shared, upload)
                found.begin()
            return found
