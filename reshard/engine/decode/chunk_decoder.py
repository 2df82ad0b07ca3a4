"""ChunkDecoder: decodes one source chunk band by band, in a stream or at once."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from reshard.engine.task import SourceChunk
from reshard.formats.codecs import DecodeStream, open_fill, open_stream
from reshard.formats.codecs.source import Source
from reshard.formats.contents import Encoding, StoredTensor
from reshard.geometry.bands import Band
from reshard.geometry.box import Box
from reshard.geometry.dtypes import storage_bytes

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from reshard.engine.buffers import Bytes

    Array = npt.NDArray[Any]


class StoredChunks(Struct, frozen=True):
    """What all chunks of a tensor share: name, dtype, encoding, and what a missing one holds."""

    name: str
    dtype: str
    encoding: Encoding
    fill: bytes

    @classmethod
    def of(cls, stored: StoredTensor) -> StoredChunks:
        """The chunks of a stored tensor."""
        return cls(stored.spec.name, stored.spec.dtype, stored.encoding, stored.fill)

    def where(self, chunk: SourceChunk) -> str:
        """The tensor and the chunk, for messages."""
        return f"tensor {self.name!r}, chunk {list(chunk.index)}"


def open_chunk(
    stored: StoredChunks,
    chunk: SourceChunk,
    encoded: memoryview | None = None,
    wanted_bytes: int | None = None,
) -> DecodeStream:
    """The chunk's decoded bytes, padding included, in order; of one that is not stored its fill.

    ``wanted_bytes``: nothing behind so many of them will be read; None where all may be.
    """
    decoded_bytes = chunk_bytes(chunk, stored.dtype)
    if chunk.extent is None:
        return open_fill(stored.fill, decoded_bytes)
    return open_stream(
        stored.encoding,
        chunk.extent,
        decoded_bytes,
        stored.where(chunk),
        inside=chunk.box.shape,
        dtype=stored.dtype,
        shape=chunk.stored_shape,
        encoded=encoded,
        wanted_bytes=wanted_bytes,
    )


def chunk_bytes(chunk: SourceChunk, dtype: str) -> int:
    """Bytes of the decoded chunk, padding included."""
    return math.prod(chunk.stored_shape) * storage_bytes(dtype)


def decode_into(memory: Bytes, stored: StoredChunks, chunk: SourceChunk, encoded: Bytes) -> None:
    """Fills ``memory``, which is as large as the chunk, with all of it, and checks that nothing is left over.

    ``encoded`` is memory for what is read, of ``encoded_room`` bytes, or nothing.
    """
    with closing(open_chunk(stored, chunk, encoded.data)) as stream:
        stream.readinto(memory.data)
        stream.close_checked()


def check_stored(stored: StoredChunks, chunk: SourceChunk) -> None:
    """Reads a chunk for its CRC32C, where it has one: after a read that skipped some of its bytes.

    Raises CorruptError, naming tensor and chunk, where the checksum does not fit.
    """
    if chunk.extent is None or not stored.encoding.checksum:
        return
    with closing(
        Source(chunk.extent, stored.where(chunk), True, stored.encoding.read_ahead_bytes)
    ) as source:
        source.read_rest()
        source.check_trailer()


class Whole(Struct, frozen=True):
    """Memory in which a chunk is decoded at once.

    Attributes:
        decoded: as large as the chunk.
        encoded: for what is read, until it is decoded; of ``encoded_room`` bytes.
    """

    decoded: Bytes
    encoded: Bytes


class ChunkDecoder:
    """A chunk's elements in row-major order, of which only those inside a box are wanted."""

    def __init__(
        self,
        stored: StoredChunks,
        chunk: SourceChunk,
        wanted: Box,
        origin: Sequence[int],
        whole: Whole | None = None,
    ) -> None:
        """Opens the chunk; ``wanted`` and ``origin`` (the chunk's start) are in the caller's coordinates.

        Given memory for the ``whole`` chunk, decodes it at once, and bands are parts of it.
        """
        self.chunk = chunk
        self.wanted = wanted
        self._origin = tuple(origin)
        self._itemsize = storage_bytes(stored.dtype)
        self._is_whole = self._inside().shape == chunk.stored_shape
        self._bytes: _Streamed | _Decoded
        if whole is None:
            self._bytes = _Streamed(open_chunk(stored, chunk, wanted_bytes=self._wanted_bytes()))
        else:
            decode_into(whole.decoded, stored, chunk, whole.encoded)
            self._bytes = _Decoded(whole.decoded)

    @property
    def part(self) -> Box | None:
        """What is wanted of the chunk, counted from its start; None for all of it."""
        inside = self._inside()
        return None if inside.shape == self.chunk.box.shape else inside

    def _inside(self) -> Box:
        return self.wanted.relative_to(self._origin)

    def _wanted_bytes(self) -> int | None:
        """The chunk's bytes up to the last row that is wanted; None for all of it."""
        rows, stored = self._inside().stop[:1], self.chunk.stored_shape
        if not rows or rows[0] >= stored[0]:
            return None
        return rows[0] * math.prod(stored[1:]) * self._itemsize

    def read(
        self, band: Band, memory: Bytes, dtype: np.dtype[Any]
    ) -> tuple[int, tuple[Array, Box] | None]:
        """How many bytes the band has, and what is wanted of it.

        That is a view of ``memory``, or of the whole chunk's where there is one, and its box in the caller's
        coordinates; None where the band holds nothing that is wanted. Then its bytes are passed over.
        """
        local = band.box(self.chunk.stored_shape)
        shape = local.shape
        nbytes = math.prod(shape) * self._itemsize
        here = local.shift(self._origin)
        box = here if self._is_whole else here.intersect(self.wanted)
        if box is None:
            self._bytes.skip(nbytes)
            return nbytes, None
        elements = self._bytes.take(nbytes, memory).view(dtype).reshape(shape)
        if not self._is_whole:
            elements = elements[box.relative_to(here.start).slices]
        return nbytes, (elements, box)

    def is_behind(self, band: Band) -> bool:
        """Whether this band, and so every later one, lies behind everything wanted."""
        start = (*band.lead, band.start)
        last = tuple(w - 1 - o for w, o in zip(self.wanted.stop, self._origin, strict=True))
        return bool(last) and start > last[: len(start)]

    def check_end(self) -> None:
        """After the last band: nothing may be left over, and a checksum must fit (unless bands were skipped)."""
        self._bytes.check_end()

    def close(self) -> None:
        self._bytes.close()


class _Streamed:
    """Bytes that are decoded when they are taken, into the memory of the caller."""

    def __init__(self, stream: DecodeStream) -> None:
        self._stream = stream
        self._skipped = False

    def take(self, nbytes: int, memory: Bytes) -> Bytes:
        out = memory[:nbytes]
        self._stream.readinto(out.data)
        return out

    def skip(self, nbytes: int) -> None:
        self._stream.skip(nbytes)
        self._skipped = True

    def check_end(self) -> None:
        if not self._skipped:
            self._stream.close_checked()

    def close(self) -> None:
        self._stream.close()


class _Decoded:
    """Bytes that were decoded and checked before: what is taken stays where it is."""

    def __init__(self, memory: Bytes) -> None:
        self._memory = memory
        self._at = 0

    def take(self, nbytes: int, _: Bytes) -> Bytes:
        start = self._at
        self.skip(nbytes)
        return self._memory[start : self._at]

    def skip(self, nbytes: int) -> None:
        self._at += nbytes

    def check_end(self) -> None:
        """Checked when it was decoded."""

    def close(self) -> None:
        """Nothing is open."""
