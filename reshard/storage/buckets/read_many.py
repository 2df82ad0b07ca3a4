"""Reads many short ranges at once, such as the metadata of each tensor: those that lie close together in one request."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import closing, suppress

from msgspec import Struct

from reshard.errors import StorageError
from reshard.storage.buckets.threads import request_threads
from reshard.storage.location import open_file

GAP_BYTES = 32 << 10
REQUEST_BYTES = 512 << 10
"""Ranges with short gaps between them are read together, up to so many bytes."""


class ByteRange(Struct, frozen=True, order=True):
    """A range of a file; ``path`` and ``version`` are as ``open_file`` takes them."""

    path: str
    version: str
    offset: int
    nbytes: int


def read_many(parts: Iterable[ByteRange]) -> dict[ByteRange, bytes]:
    """The bytes of each range; a range that cannot be read whole is left out."""
    requests = _together(sorted(set(parts)))
    found: dict[ByteRange, bytes] = {}
    for read in request_threads().map(_read, requests):
        found.update(read)
    return found


def _together(parts: Sequence[ByteRange]) -> list[list[ByteRange]]:
    requests: list[list[ByteRange]] = []
    for part in parts:
        if not requests or not _fits(requests[-1], part):
            requests.append([])
        requests[-1].append(part)
    return requests


def _fits(request: Sequence[ByteRange], part: ByteRange) -> bool:
    first, last = request[0], request[-1]
    return (
        (part.path, part.version) == (first.path, first.version)
        and part.offset - (last.offset + last.nbytes) <= GAP_BYTES
        and part.offset + part.nbytes - first.offset <= REQUEST_BYTES
    )


def _read(parts: Sequence[ByteRange]) -> dict[ByteRange, bytes]:
    start = parts[0].offset
    end = max(part.offset + part.nbytes for part in parts)
    with suppress(StorageError), closing(open_file(parts[0].path, parts[0].version)) as file:
        data = file.read(start, end - start)
        cut = {part: data[part.offset - start :][: part.nbytes] for part in parts}
        return {part: text for part, text in cut.items() if len(text) == part.nbytes}
    return {}
