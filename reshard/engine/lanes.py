"""Lane: one source chunk decoded in a stream, band by band."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from reshard.engine.bands import Band
from reshard.engine.task import SourceChunk, Task
from reshard.formats.codecs import open_fill, open_stream
from reshard.layout.box import Box
from reshard.layout.dtypes import storage_bytes

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from reshard.engine.buffers import Bytes

    Array = npt.NDArray[Any]


class Lane:
    """A chunk's elements in row-major order, of which only those inside the task's unit are wanted."""

    def __init__(self, task: Task, chunk: SourceChunk) -> None:
        placement = task.placement
        self.chunk = chunk
        self._itemsize = storage_bytes(placement.source_dtype)
        self._origin = placement.from_source(chunk.box).start
        wanted = placement.from_source(chunk.box).intersect(task.unit)
        self.wanted = wanted if wanted is not None else placement.from_source(chunk.box)
        self._skipped = False
        decoded_bytes = math.prod(chunk.stored_shape) * self._itemsize
        where = f"tensor {placement.source!r}, chunk {chunk.index}"
        if chunk.extent is None:
            self._stream = open_fill(task.fill, decoded_bytes)
        else:
            self._stream = open_stream(
                task.source_encoding,
                chunk.extent,
                decoded_bytes,
                where,
                box=chunk.box,
                dtype=placement.source_dtype,
            )

    def nbytes(self, band: Band) -> int:
        return band.box(self.chunk.stored_shape).size * self._itemsize

    def read(self, band: Band, out: Bytes, dtype: np.dtype[Any]) -> tuple[Array, Box] | None:
        """The wanted part of ``band`` as a view of ``out``, and its box in the placement's coordinates.

        None where the band holds nothing that is wanted; then its bytes are passed over.
        """
        local = band.box(self.chunk.stored_shape)
        box = local.shift(self._origin).intersect(self.wanted)
        if box is None:
            self._stream.skip(len(out))
            self._skipped = True
            return None
        self._stream.readinto(memoryview(out))
        inside = box.relative_to(self._origin).relative_to(local.start)
        return out.view(dtype).reshape(local.shape)[inside.slices], box

    def is_behind(self, band: Band) -> bool:
        """Whether this band, and so every later one, lies behind everything wanted."""
        start = (*band.lead, band.start)
        last = tuple(w - 1 - o for w, o in zip(self.wanted.stop, self._origin, strict=True))
        return start > last[: len(start)]

    def check_end(self) -> None:
        """After the last band: nothing may be left over, and a checksum must fit (unless bands were skipped)."""
        if not self._skipped:
            self._stream.close_checked()

    def close(self) -> None:
        self._stream.close()
