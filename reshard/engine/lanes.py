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
        self._is_whole = self._inside().shape == chunk.stored_shape
        self._skipped = False
        self._stream = open_chunk(stored, chunk)

    @property
    def part(self) -> Box | None:
        """What is wanted of the chunk, counted from its start; None for all of it."""
        inside = self._inside()
        return None if inside.shape == self.chunk.box.shape else inside

    def _inside(self) -> Box:
        return self.wanted.relative_to(self._origin)

    def read(
        self, band: Band, memory: Bytes, dtype: np.dtype[Any]
    ) -> tuple[int, tuple[Array, Box] | None]:
        """How many bytes of ``memory`` the band takes, and what is wanted of it.

        That is a view of ``memory`` and its box in the caller's coordinates; None where the band holds
        nothing that is wanted. Then its bytes are passed over.
        """
        local = band.box(self.chunk.stored_shape)
        shape = local.shape
        nbytes = math.prod(shape) * self._itemsize
        here = local.shift(self._origin)
        box = here if self._is_whole else here.intersect(self.wanted)
        if box is None:
            self._stream.skip(nbytes)
            self._skipped = True
            return nbytes, None
        out = memory[:nbytes]
        self._stream.readinto(out.data)
        elements = out.view(dtype).reshape(shape)
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
        if not self._skipped:
            self._stream.close_checked()

    def close(self) -> None:
        self._stream.close()
