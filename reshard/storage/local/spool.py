"""Spool: a file to which many threads add the parts of payloads; the payloads of a delta wait in it until their sizes are known.

A safetensors file begins with the sizes of its tensors, and the size of a payload is known when its whole tensor is compressed.
The file has no name, so that a killed process leaves nothing of it. The journal of a change in place has a name.
"""

from __future__ import annotations

import errno
import os
import secrets
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from threading import Lock

from msgspec import Struct

from reshard.storage.local.files import read_at, storage_errors, write_all

_READ_BYTES = 1 << 20

_NEW = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW


class Spooled(Struct):
    """The bytes of one payload: the places of its parts, in order.

    Attributes:
        parts: offset and length of each.
    """

    parts: list[tuple[int, int]] = []

    @property
    def nbytes(self) -> int:
        return sum(length for _, length in self.parts)


class Spool:
    """The file; used by many threads.

    Args:
        folder: a local folder with room for the payloads; None for the folder of temporary files.
        name: of the file, which must not exist; "" for a file without a name.
    """

    def __init__(self, folder: str | None, name: str = "") -> None:
        folder = folder or os.environ.get("TMPDIR") or "/tmp"  # noqa: S108  POSIX names it
        self._name = f"{folder}/{name}" if name else folder
        self._is_kept = bool(name)
        with storage_errors("make a temporary file in" if not name else "create", self._name):
            self._fd = os.open(self._name, _NEW, 0o666) if name else _open_without_name(folder)
        self._end = 0
        self._lock = Lock()

    def append(self, payload: Spooled, data: bytes | bytearray | memoryview) -> None:
        """Adds bytes to a payload, which one thread fills at a time."""
        if not len(data):
            return
        with self._lock:
            start, self._end = self._end, self._end + len(data)
        write_all(self._fd, memoryview(data), start, self._name)
        if payload.parts and sum(payload.parts[-1]) == start:
            payload.parts[-1] = (payload.parts[-1][0], payload.parts[-1][1] + len(data))
        else:
            payload.parts.append((start, len(data)))

    def read(self, payload: Spooled) -> Iterator[bytes]:
        """The bytes of a payload, in order."""
        for start, length in payload.parts:
            for at in range(start, start + length, _READ_BYTES):
                with storage_errors("read", self._name):
                    yield read_at(self._fd, min(_READ_BYTES, start + length - at), at)

    def close(self) -> None:
        """Closes the file, which is gone then if it has no name."""
        with storage_errors("close", self._name) if self._is_kept else suppress(OSError):
            os.close(self._fd)


def _open_without_name(folder: str) -> int:
    try:
        return os.open(folder, os.O_RDWR | os.O_TMPFILE, 0o600)
    except OSError as error:
        if error.errno not in (errno.EOPNOTSUPP, errno.EISDIR):
            raise
    # The file system has no such files, such as NFS: the name is removed at once.
    path = Path(folder, f".{secrets.token_hex(8)}.reshard-spool")
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    path.unlink()
    return fd
