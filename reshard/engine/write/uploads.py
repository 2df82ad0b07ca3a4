"""Files that chunks share, in a store that writes no file in place: each is uploaded in order while its chunks are made."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from reshard.errors import VerificationError
from reshard.formats.base import Place, SharedFile
from reshard.storage.location import Location
from reshard.storage.upload import Upload


class Uploads:
    """The uploads of one target, for all threads of a run; each file is written by one of them at a time.

    A file's first chunk begins its upload, and its last byte ends it.

    Attributes:
        check: called before a file appears; what it raises ends the upload, of which nothing is stored then.
    """

    check: Callable[[], None] | None = None

    def __init__(self, root: Location, shared_file: Callable[[str], SharedFile]) -> None:
        self._root = root
        self._shared_file = shared_file
        self._open: dict[str, Upload] = {}
        self._lock = threading.Lock()

    def write(self, place: Place, parts: Sequence[bytes | memoryview]) -> str:
        """Adds a chunk, which must be the next of its file; the file's version once it is complete, else ""."""
        upload = self._upload(place.file)
        if upload.done_bytes != place.start:
            raise VerificationError(
                f"a chunk at {place.start} of {self._root / place.file} was made after the first {upload.done_bytes} bytes; this is a "
                "defect of the program, please report it with the plan"
            )
        for part in parts:
            upload.write(part)
        if not upload.is_whole:
            return ""
        version = upload.finish()
        with self._lock:
            del self._open[place.file]
        return version

    def abort(self) -> None:
        """Ends the uploads that are not complete; nothing of them is stored."""
        with self._lock:
            uploads, self._open = list(self._open.values()), {}
        for upload in uploads:
            upload.abort()

    def _upload(self, file: str) -> Upload:
        with self._lock:
            found = self._open.get(file)
            if found is None:
                shared = self._shared_file(file)
                found = self._open[file] = Upload(self._root / file, shared.nbytes, self.check)
                found.write(shared.head)
            return found
