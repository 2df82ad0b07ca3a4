"""Resumable uploads of the JSON API of GCS: chunks in order, until the size is reached that the last one names.

See https://cloud.google.com/storage/docs/performing-resumable-uploads.
"""

from __future__ import annotations

import re
import secrets
from typing import NamedTuple

import msgspec

from tests.emulators.apis.error_answers import NO_SUCH_UPLOAD, ErrorAnswer, RefusedRequestError
from tests.emulators.objects import StoredObject

CHUNK_BYTES = 256 << 10
"""Every chunk but the last has a multiple of so many bytes."""

INVALID_CHUNK = ErrorAnswer(400, "Invalid", "Invalid request. {}")


class Session(msgspec.Struct):
    """One upload: ``done`` is the object that it became.

    ``query`` has the conditions and ``hashes`` the checksums of the request that began it.
    """

    bucket: str
    key: str
    query: dict[str, str]
    headers: dict[str, str]
    hashes: dict[str, str]
    segments: list[memoryview] = []
    size: int = 0
    done: StoredObject | None = None


class Chunk(NamedTuple):
    """Where the bytes of a request belong; one without bytes (None) asks how far the upload is.

    ``total`` is the size of the object, None while it is not known. When that many bytes are there, the upload is done.
    """

    start: int | None
    nbytes: int
    total: int | None


class Sessions:
    """The uploads of a server, each until it is aborted."""

    def __init__(self) -> None:
        self._sessions: dict[str, Session] = {}

    def start(self, session: Session) -> str:
        upload_id = secrets.token_hex(16)
        self._sessions[upload_id] = session
        return upload_id

    def find(self, upload_id: str) -> Session:
        if upload_id not in self._sessions:
            raise RefusedRequestError(NO_SUCH_UPLOAD)
        return self._sessions[upload_id]

    def key(self, upload_id: str) -> str:
        """Of which object an upload is; "" for none that is known."""
        found = self._sessions.get(upload_id)
        return found.key if found else ""

    def would_finish(self, upload_id: str, chunk: Chunk) -> bool:
        found = self._sessions.get(upload_id)
        if found is None or found.done is not None or chunk.total is None:
            return False
        end = found.size if chunk.start is None else chunk.start + chunk.nbytes
        return end == chunk.total

    def abort(self, upload_id: str) -> None:
        self.find(upload_id)
        del self._sessions[upload_id]


def chunk_of(content_range: str, nbytes: int) -> Chunk:
    """Which bytes a request brings; without a range, all."""
    if not content_range:
        return Chunk(0, nbytes, nbytes)
    found = re.fullmatch(r"bytes (?:(\d+)-(\d+)|\*)/(\d+|\*)", content_range)
    if not found:
        raise _invalid(f"Content-Range {content_range}")
    first, last, size = found.groups()
    total = None if size == "*" else int(size)
    if first is None:
        return Chunk(None, 0, total)
    if int(last) - int(first) + 1 != nbytes:
        raise _invalid(f"Content-Range {content_range} with {nbytes} bytes")
    return Chunk(int(first), nbytes, total)


def add(session: Session, chunk: Chunk, body: memoryview) -> None:
    """Keeps what a chunk adds; bytes that are there already are left out."""
    start = chunk.start or 0
    if start > session.size:
        raise _invalid(f"{session.size} bytes are there, and the chunk begins at {start}")
    if chunk.total != start + chunk.nbytes and chunk.nbytes % CHUNK_BYTES:
        raise _invalid(f"a chunk of {chunk.nbytes} bytes is not a multiple of {CHUNK_BYTES}")
    new = body[session.size - start :]
    session.segments.append(new)
    session.size += len(new)


def _invalid(what: str) -> RefusedRequestError:
    message = INVALID_CHUNK.message.format(what)
    return RefusedRequestError(msgspec.structs.replace(INVALID_CHUNK, message=message))
