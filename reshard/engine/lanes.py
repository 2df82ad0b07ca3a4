"""Lane: one source chunk decoded in a stream, band by band."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from reshard.engine.bands import Band
from reshard.engine.task import SourceChunk
from reshard.formats.base import Encoding
from reshard.formats.codecs import DecodeStream, open_fill, open_stream
from reshard.layout.box import Box
from reshard.layout.dtypes import storage_bytes

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from reshard.engine.buffers import Bytes

    Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class StoredChunks:
    """What all chunks of a tensor share: name, dtype, encoding, and what a missing one holds."""

    name: str
    dtype: str
    encoding: Encoding
    fill: bytes


def open_chunk(stored: StoredChunks, chunk: SourceChunk) -> DecodeStream:
    """The chunk's decoded bytes, padding included, in order; of one that is not stored its fill."""
    decoded_bytes = math.prod(chunk.stored_shape) * storage_bytes(stored.dtype)
    if chunk.extent is None:
        return open_fill(stored.fill, decoded_bytes)
    where = f"tensor {stored.name!r}, chunk {list(chunk.index)}"
    return open_stream(
        stored.encoding, chunk.extent, decoded_bytes, where, box=chunk.box, dtype=stored.dtype
    )


class Lane:
    """A chunk's elements in row-major order, of which only those inside a box are wanted."""

    def __init__(
        self, stored: StoredChunks, chunk: SourceChunk, wanted: Box, origin: Sequence[int]
    ) -> None:
        """Opens the chunk; ``wanted`` and ``origin`` (the chunk's start) are in the caller's coordinates."""
        self.chunk = chunk
        self.wanted = wanted
        self._origin = tuple(origin)
        self._itemsize = storage_bytes(stored.dtype)
        self._skipped = False
        self._stream = open_chunk(stored, chunk)

    @property
    def part(self) -> Box | None:
        """What is wanted of the chunk, counted from its start; None for all of it."""
        inside = self.wanted.relative_to(self._origin)
        return None if inside.shape == self.chunk.box.shape else inside

    def nbytes(self, band: Band) -> int:
        return band.box(self.chunk.stored_shape).size * self._itemsize

    def read(self, band: Band, out: Bytes, dtype: np.dtype[Any]) -> tuple[Array, Box] | None:
        """The wanted part of ``band`` as a view of ``out``, and its box in the caller's coordinates.

        None where the band holds nothing that is wanted; then its bytes are passed over.
        """
        local = band.box(self.chunk.stored_shape)
        box = local.shift(self._origin).intersect(self.wanted)
        if box is None:
            self._stream.skip(len(out))
            self._skipped = True
            return None
        self._stream.readinto(out.data)
        inside = box.relative_to(self._origin).relative_to(local.start)
        return out.view(dtype).reshape(local.shape)[inside.slices], box

    def is_behind(self, band: Band) -> bool:
        """Whether this band, and so every later one, lies behind everything wanted."""
        start = (*band.lead, band.start)
        last = tuple(w - 1 - o for w, o in zip(self.wanted.stop, self._origin, strict=True))
        return bool(last) and start > last[: len(start)]

    def check_end(self) -> None:
        """After the last band: nothing may be left over, and a checksum must fit (unless bands were skipped)."""
        if not self._skipped:
            self._stream.close_checked()

    def close(self) -> None:
        self._stream.close()
