"""ChunkMemory: how the chunks of a tensor are decoded one after another, and the memory that this takes.

A chunk is decoded in a stream, band by band, or at once if that is quicker and its memory is allowed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from reshard.engine.buffers import ALIGNMENT, Arena
from reshard.formats.codecs import decoder_bytes, encoded_room
from reshard.formats.contents import Encoding
from reshard.planning.cost import (
    AT_ONCE_BYTES,
    BAND_BYTES,
    CAST_SCRATCH_BYTES,
    TASK_OVERHEAD_BYTES,
)

if TYPE_CHECKING:
    from reshard.engine.buffers import Bytes


class ChunkMemory(Struct, frozen=True):
    """Bytes that decoding one chunk takes.

    Attributes:
        decoded: for a band, or for the whole chunk if it is decoded at once.
        encoded: for what is read of a chunk that is decoded at once; 0 for a stream.
        beside: for the decoder, casts and small objects.
    """

    decoded: int
    encoded: int
    beside: int

    @property
    def is_at_once(self) -> bool:
        return self.encoded > 0

    @property
    def arena(self) -> int:
        """Bytes of the two buffers, one behind the other."""
        return -(-self.decoded // ALIGNMENT) * ALIGNMENT + self.encoded

    @property
    def total(self) -> int:
        return self.arena + self.beside

    def buffers(self, arena: Arena) -> ChunkBuffers:
        """The buffers, from an arena of at least these bytes of which nothing is taken."""
        return ChunkBuffers(arena.take(self.decoded), arena.take(self.encoded))


class ChunkBuffers(Struct, frozen=True):
    """Memory in which a chunk is decoded; ``encoded`` is empty for a stream."""

    decoded: Bytes
    encoded: Bytes

    @property
    def is_at_once(self) -> bool:
        return len(self.encoded) > 0


def stream_memory(encoding: Encoding, chunk_bytes: int, *, is_cast: bool = False) -> ChunkMemory:
    """The memory to decode chunks of at most ``chunk_bytes`` in a stream."""
    cast = CAST_SCRATCH_BYTES if is_cast else 0
    beside = decoder_bytes(encoding, chunk_bytes) + TASK_OVERHEAD_BYTES + cast
    return ChunkMemory(min(chunk_bytes, BAND_BYTES), 0, beside)


def quickest_memory(
    encoding: Encoding, chunk_bytes: int, most_bytes: int, *, is_cast: bool = False
) -> ChunkMemory:
    """To decode them at once if that is quicker and takes at most ``most_bytes``; else in a stream."""
    streamed = stream_memory(encoding, chunk_bytes, is_cast=is_cast)
    room = encoded_room(encoding, chunk_bytes)
    at_once = ChunkMemory(chunk_bytes, room, streamed.beside)
    gains = room > 0 and chunk_bytes <= AT_ONCE_BYTES
    return at_once if gains and at_once.total <= most_bytes else streamed
