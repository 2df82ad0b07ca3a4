"""Whether a store has the bytes that were sent, where no checksum goes along or the answer was lost."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING

from reshard.checksums.crc import CRC64NVME
from reshard.errors import MissingError, SourceChangedError, StorageError
from reshard.storage.buckets.file import RANGE_BYTES

if TYPE_CHECKING:
    from reshard.storage.buckets.store import BucketStore

_MD5 = re.compile(r'"?([0-9a-f]{32})"?')

_RANGES_AT_ONCE = 4


class Sent:
    """What an upload in parts has taken: bytes, their CRC-64/NVME, and whether that is all of them."""

    def __init__(self) -> None:
        self.nbytes = self.crc = 0
        self.is_all = False

    def counted(self, parts: Iterable[bytes | memoryview]) -> Iterator[bytes | memoryview]:
        """The parts, without empty ones."""
        for part in parts:
            if len(part):
                self.nbytes += len(part)
                self.crc = CRC64NVME.of(part, self.crc)
                yield part
        self.is_all = True


def is_received(store: BucketStore, path: str, data: bytes | memoryview, version: str) -> bool:
    """Whether Google Cloud received what was put whole: its ETag of such an object is most often its MD5.

    Where it is something else (the object has a key of the customer), the object is read back. One that another run
    has replaced or deleted since counts as stored: nothing is left that could be wrong.
    """
    found = _MD5.fullmatch(version)
    if found is not None and hashlib.md5(data, usedforsecurity=False).hexdigest() == found[1]:
        return True
    try:
        return store.open(path, version).read(0, len(data) + 1) == data
    except (SourceChangedError, MissingError):
        return True


def is_received_in_parts(store: BucketStore, path: str, version: str, sent: Sent) -> bool:
    """Whether an object has the bytes of an upload, by reading it in that version."""
    file, done, crc = store.open(path, version), 0, 0
    buffer = memoryview(bytearray(min(sent.nbytes, _RANGES_AT_ONCE * RANGE_BYTES)))
    while done < sent.nbytes and (read := file.fill(done, buffer[: sent.nbytes - done])):
        crc = CRC64NVME.of(buffer[:read], crc)
        done += read
    return (done, crc) == (sent.nbytes, sent.crc) and not file.read(done, 1)


def stored_version(store: BucketStore, path: str, sent: Sent) -> str | None:
    """The version of an object that has all bytes of an upload, although the store answered with an error; None for none."""
    with suppress(StorageError):
        found = store.status(path) if sent.is_all else None
        if found is not None and is_received_in_parts(store, path, found.version, sent):
            return found.version
    return None
