"""ViewFile: one file of a view: bytes that are known, and between them boxes of tensors, which are read when they are asked for."""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from functools import cached_property

from msgspec import Struct

from reshard.checksums.crc import CRC32C, CRC64NVME, crc_of_parts
from reshard.checksums.sums import digest_of_bytes
from reshard.geometry.grid import Box
from reshard.storage.location import Location
from reshard.views.results import Octets, Results

_CRC_BYTES = 4
BLOCK_BYTES = 1 << 20
PIECE_BYTES = 1 << 20
"""Read at once of a file that is known."""


class Segment(Struct, frozen=True):
    """A box of a tensor in a file; ``start`` is the offset of its first byte."""

    start: int
    nbytes: int
    name: str
    box: Box


class Block(Struct, frozen=True):
    """Bytes ``start:stop`` of a file, which are kept together, :data:`BLOCK_BYTES` at most.

    Attributes:
        first, last: the bytes around it that come from the same chunks, and in which the next blocks begin where this one ends.
        is_seekable: true if it costs no more than its bytes; else chunks are decoded from their beginning.
    """

    start: int
    stop: int
    first: int
    last: int
    is_seekable: bool


class ViewFile(Struct, frozen=True, dict=True):
    """A file of a view; it has the bytes that a conversion would write.

    Attributes:
        path: below the view.
        nbytes: of the whole file.
        tag: a text that is another one where the bytes may be others, 40 hex digits.
        head: the bytes before the first segment.
        segments: boxes of tensors, which follow the head without gaps; zeros behind them pad a chunk at the edge of its tensor.
        known: the place of a file that was made when the view was planned; it has no segments.
        has_crc32c: true if it ends with the CRC32C of all bytes before, as a chunk of zarr may; a read of that end reads the file.
    """

    path: str
    nbytes: int
    tag: str
    results: Results
    head: bytes = b""
    segments: Sequence[Segment] = ()
    known: Location | None = None
    has_crc32c: bool = False

    @property
    def is_known(self) -> bool:
        """True if the file was made when the view was planned."""
        return self.known is not None

    @cached_property
    def _large(self) -> dict[int, Segment]:
        """Segments with blocks of their own, by their starts."""
        return {each.start: each for each in self.segments if each.nbytes > BLOCK_BYTES}

    @cached_property
    def _edges(self) -> list[int]:
        """Offsets at which blocks begin anew, and the end."""
        ends = [end for s in self._large.values() for end in (s.start, s.start + s.nbytes)]
        return sorted({0, self.nbytes, *([] if self.has_crc32c else ends)})

    def read(self, start: int = 0, stop: int | None = None) -> Iterator[bytes]:
        """Bytes ``start:stop`` in order, in pieces of any length; only the chunks of this range are read.

        Raises CorruptError for chunks with wrong bytes, SourceChangedError if the source was changed since the view was planned,
        MissingError if it is gone, StorageError if it cannot be read; before any byte that is concerned is handed over.
        """
        return map(bytes, self.pieces(start, stop))

    def pieces(self, start: int = 0, stop: int | None = None) -> Generator[Octets]:
        """As ``read``; a piece is valid until the next one is asked for."""
        stop = self.nbytes if stop is None else min(stop, self.nbytes)
        start = min(max(0, start), stop)
        if self.known is not None:
            yield from _read(self.known, start, stop)
            return
        content = self.nbytes - _CRC_BYTES * self.has_crc32c
        if not self.has_crc32c or stop <= content:
            yield from self._content(start, stop)
            return
        crc = 0
        for piece in self._content(0, content):
            crc = CRC32C.of(piece, crc)
            if start == 0:
                yield piece
        if 0 < start < content:
            yield from self._content(start, content)
        yield crc.to_bytes(_CRC_BYTES, "little")[max(0, start - content) : stop - content]

    def _content(self, start: int, stop: int) -> Generator[Octets]:
        if start < len(self.head):
            yield self.head[start:stop]
        first = bisect_right(self._starts, max(start, len(self.head))) - 1
        for segment in self.segments[max(0, first) :]:
            if segment.start >= stop:
                break
            begin, end = max(0, start - segment.start), min(segment.nbytes, stop - segment.start)
            if begin < end:
                yield from self.results.read(segment.name, segment.box, begin, end)
        padded = stop - max(start, self._end)
        if padded > 0:
            yield bytes(padded)

    @cached_property
    def _starts(self) -> list[int]:
        return [segment.start for segment in self.segments]

    @property
    def _end(self) -> int:
        last = self.segments[-1] if self.segments else None
        return len(self.head) if last is None else last.start + last.nbytes

    @cached_property
    def crc64nvme(self) -> int | None:
        """CRC-64/NVME of the file, where it is known without reading tensors: from the digests that the source recorded."""
        if self.known is not None:
            crc = 0
            for piece in self.read():
                crc = digest_of_bytes(piece, crc)
            return crc
        if self.has_crc32c:
            return None
        parts = [(0, len(self.head), digest_of_bytes(self.head, 0))]
        for segment in self.segments:
            digest = self.results.digest_of(segment.name, segment.box)
            if digest is None:
                return None
            parts.append((segment.start, segment.nbytes, int(digest, 16)))
        return crc_of_parts(CRC64NVME, parts, self.nbytes)

    @cached_property
    def git_id(self) -> str | None:
        """The id that git gives to a file with these bytes, 40 hex digits; None for a file with tensors, which are not read for it."""
        if self.known is None:
            return None
        found = hashlib.sha1(f"blob {self.nbytes}\0".encode(), usedforsecurity=False)
        for piece in self.read():
            found.update(piece)
        return found.hexdigest()


def block_at(file: ViewFile, offset: int) -> Block:
    """The block of a file with the byte at an offset. No two blocks overlap, and none has parts of two rows of chunks."""
    after = bisect_right(file._edges, offset)
    first, last = file._edges[after - 1 : after + 1]
    segment = file._large.get(first)
    is_seekable = segment is None or file.results.is_seekable(segment.name)
    if segment is not None and not is_seekable and not file.has_crc32c:
        begin, end = file.results.band(segment.name, segment.box, offset - first)
        first, last = first + begin, first + end
    start = offset - (offset - first) % BLOCK_BYTES
    return Block(start, min(start + BLOCK_BYTES, last), first, last, is_seekable)


def _read(place: Location, start: int, stop: int) -> Generator[Octets]:
    with closing(place.open()) as file:
        while start < stop:
            piece = file.read(start, min(PIECE_BYTES, stop - start))
            yield piece
            start += len(piece)
