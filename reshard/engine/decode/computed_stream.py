"""ComputedStream: the bytes of a computed chunk, window by window.

Each window is a box of the chunk. Its operands are read in the order in which they are stored, but for held ones, of which all that the
chunk needs is read at first. A window goes straight into the caller's memory where that has room for it.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from reshard.formats.contents import ComputedChunk, OperandWindow, SourceChunk
from reshard.geometry.dtypes import element_dtype
from reshard.geometry.grid import Box

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from reshard.engine.decode.chunk_reader import ChunkReader

    Array = npt.NDArray[Any]


Opener = Callable[[OperandWindow, SourceChunk, "np.dtype[Any]"], "ChunkReader"]


class ComputedStream:
    """The decoded bytes of a computed chunk, in order; a DecodeStream.

    Args:
        where: tensor and chunk, for messages.
        opener: opens a chunk of an operand.
    """

    def __init__(self, chunk: ComputedChunk, where: str, opener: Opener) -> None:
        self._formula = formula = chunk.formula
        is_cast = not formula.is_opaque
        self._dtype = element_dtype(chunk.dtype, is_cast=is_cast)
        self._windows = windows(chunk.box, formula.grain, formula.window_elements)
        self._left = chunk.box.size * self._dtype.itemsize
        self._rest: Any = memoryview(b"")
        self._operands = [
            _Operand(each, opener, element_dtype(each.dtype, is_cast=is_cast))
            for each in chunk.operands
        ]
        self._calculation = formula.opened(where, self._left)

    def readinto(self, out: memoryview) -> None:
        """Fills all of ``out`` with the next bytes."""
        import numpy as np

        out = out.cast("B") if out.format != "B" or out.ndim != 1 else out
        self._advance(len(out))
        while len(out):
            if not len(self._rest):
                box = next(self._windows)
                size = box.size * self._dtype.itemsize
                if size <= len(out):
                    self._compute(box, np.frombuffer(out[:size], np.uint8))
                    out = out[size:]
                    continue
                self._rest = self._compute(box, np.empty(size, np.uint8))
            count = min(len(out), len(self._rest))
            out[:count], self._rest = self._rest[:count], self._rest[count:]
            out = out[count:]

    def skip(self, nbytes: int) -> None:
        """Skips bytes. Whole windows are not computed, unless the formula must see all of them in order."""
        import numpy as np

        self._advance(nbytes)
        while nbytes:
            if not len(self._rest):
                box = next(self._windows)
                size = box.size * self._dtype.itemsize
                if size <= nbytes and not self._formula.is_sequential:
                    nbytes -= size
                    continue
                self._rest = self._compute(box, np.empty(size, np.uint8))
            count = min(nbytes, len(self._rest))
            self._rest = self._rest[count:]
            nbytes -= count

    def close_checked(self) -> bool:
        """Reads the rest if the formula compares checksums of what it computes; then closes."""
        try:
            if self._formula.is_sequential:
                self.skip(self._left)
                self._calculation.check_end()
        finally:
            self.close()
        return True

    def close(self) -> None:
        """Closes without checks; may be called twice."""
        self._calculation.close()
        for operand in self._operands:
            operand.close()

    def _compute(self, box: Box, out: Array) -> memoryview:
        """Computes a window into ``out``; returns its bytes."""
        boxes = self._formula.boxes(box)
        operands = [each.read(part) for each, part in zip(self._operands, boxes, strict=True)]
        self._calculation.compute(box, operands, out.view(self._dtype).reshape(box.shape))
        return out.data

    def _advance(self, nbytes: int) -> None:
        if not 0 <= nbytes <= self._left:
            raise ValueError(f"{nbytes} bytes are requested of a chunk with {self._left} left")
        self._left -= nbytes


class _Operand:
    """The part of one operand that a chunk needs. Chunks of it are opened when they are first needed, and closed when they are used up."""

    def __init__(self, window: OperandWindow, opener: Opener, dtype: np.dtype[Any]) -> None:
        self._window = window
        self._opener = opener
        self._dtype = dtype
        self._open: dict[int, ChunkReader] = {}
        self._held: Array | None = None
        self._memory: Any = None

    def read(self, box: Box) -> Array:
        """The elements of a box of the operand, valid until the next call; each behind those read before, unless it is held."""
        if not self._window.is_held:
            return self._next(box)
        if self._held is None:
            self._held = self._next(self._window.box)
        return self._held[box.relative_to(self._window.box.start).slices]

    def close(self) -> None:
        """Closes what is open, without checks."""
        while self._open:
            self._open.popitem()[1].close()

    def _next(self, box: Box) -> Array:
        import numpy as np

        found = [
            (n, part) for n, c in enumerate(self._window.chunks) if (part := c.box.intersect(box))
        ]
        if len(found) == 1 and found[0][1] == box:
            return self._part(found[0][0], box)
        out = np.empty(box.shape, self._dtype)
        for number, part in found:
            out[part.relative_to(box.start).slices] = self._part(number, part)
        return out

    def _part(self, number: int, box: Box) -> Array:
        import numpy as np

        chunk = self._window.chunks[number]
        opened = self._open.get(number)
        if opened is None:
            opened = self._open[number] = self._opener(self._window, chunk, self._dtype)
        local = box.relative_to(chunk.box.start)
        nbytes = opened.elements_with_gaps(local) * self._dtype.itemsize
        if self._memory is None or self._memory.nbytes < nbytes:
            self._memory = np.empty(nbytes, np.uint8)
        elements: Array = opened.read(local, self._memory)
        if box.stop == opened.wanted.stop:
            del self._open[number]
            opened.check_end()
            opened.close()
        return elements


def windows(box: Box, grain: Sequence[int], most: int) -> Iterator[Box]:
    """The windows of a box in row-major order, each of at most ``most`` elements if the grain allows it.

    >>> [str(window) for window in windows(Box((2, 0), (5, 8)), (), 16)]
    ['[2:4, 0:8]', '[4:5, 0:8]']
    """
    shape = box.shape
    if not box.size:
        return iter(())
    units = grain or (1,) * len(shape)
    dim = next(
        (d for d, unit in enumerate(units) if unit > 1 or math.prod(shape[d + 1 :]) <= most),
        max(0, len(shape) - 1),
    )
    return _cut(box, dim, units, most)


def _cut(box: Box, dim: int, units: Sequence[int], most: int) -> Iterator[Box]:
    shape = box.shape
    if not shape:
        yield box
        return
    rows = max(units[dim], most // math.prod(shape[dim + 1 :]) // units[dim] * units[dim])
    leading = [range(a, b) for a, b in zip(box.start[:dim], box.stop[:dim], strict=True)]
    start, stop = box.start[dim], box.stop[dim]
    edges = [start, *range((start // rows + 1) * rows, stop, rows), stop]
    for place in itertools.product(*leading):
        for a, b in itertools.pairwise(edges):
            ends = tuple(i + 1 for i in place)
            yield Box((*place, a, *box.start[dim + 1 :]), (*ends, b, *box.stop[dim + 1 :]))
