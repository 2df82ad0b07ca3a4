"""Chunks whose axes are stored in another order: zarr 2's order F, and zarr 3's transpose."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from reshard.formats.codecs.stream import DecodeStream
from reshard.geometry.dtypes import opaque_dtype
from reshard.geometry.row_major import run_boxes
from reshard.geometry.turned_copy import turned_copy


class TurnedStream:
    """The elements of a chunk in row-major order, taken from the whole chunk as it is stored.

    Its first elements may be stored last, so the chunk is decoded whole, once, when something of it is first wanted.
    That is the only copy of it.

    Args:
        stored: the decoded bytes in the stored order; closed here.
        shape: of the chunk, padding included.
        axis_order: the axes as they are stored, slowest first.
    """

    def __init__(
        self, stored: DecodeStream, shape: Sequence[int], axis_order: Sequence[int], nbytes: int
    ) -> None:
        self._stored = stored
        self._shape = tuple(shape)
        self._order = tuple(axis_order)
        self._nbytes = nbytes
        self._itemsize = nbytes // max(1, math.prod(shape))
        self._elements: np.ndarray[tuple[int, ...], np.dtype[np.generic]] | None = None
        self._position = 0

    def readinto(self, out: memoryview) -> None:
        """Fills ``out`` with whole elements."""
        elements = np.frombuffer(out, opaque_dtype(self._itemsize))
        start = self._position // self._itemsize
        self.skip(len(out))
        turned, at = self._decoded(), 0
        for box in run_boxes(self._shape, start, start + len(elements)):
            turned_copy(elements[at : at + box.size].reshape(box.shape), turned[box.slices])
            at += box.size

    def skip(self, nbytes: int) -> None:
        if not 0 <= nbytes <= self._nbytes - self._position:
            raise ValueError(
                f"{nbytes} bytes are requested, but {self._nbytes - self._position} are left"
            )
        self._position += nbytes

    def close_checked(self) -> bool:
        """True: all of the chunk is decoded, whatever was skipped of it."""
        try:
            self._decoded()
        finally:
            self.close()
        return True

    def close(self) -> None:
        self._elements = None
        self._stored.close()

    def _decoded(self) -> np.ndarray[tuple[int, ...], np.dtype[np.generic]]:
        """The chunk, its axes in the tensor's order."""
        if self._elements is None:
            memory = np.empty(self._nbytes, np.uint8)
            self._stored.readinto(memory.data)
            self._stored.close_checked()
            stored = memory.view(opaque_dtype(self._itemsize))
            shape = [self._shape[axis] for axis in self._order]
            self._elements = stored.reshape(shape).transpose(np.argsort(self._order))
        return self._elements
