"""Uploads of files that chunks share, for a store that does not write in place: each is sent in order as its chunks are made."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from reshard.errors import VerificationError
from reshard.formats.file_map import Place, SharedFile, StoredRanges
from reshard.storage.location import Location
from reshard.storage.target import Upload


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
