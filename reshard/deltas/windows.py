"""Windows: row-major bytes of target tensors that are made in memory, side by side for OLD and NEW.

::

    tensors   |  a  |      b      |        c         |
    rounds    |  a, b  |  c, its first cells |  the others of c |

A tensor is made in cells, each a run of its row-major bytes. A round has the cells that fit the memory, of as many tensors as fit.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from reshard.engine.buffers import ALIGNMENT
from reshard.geometry.grid import Box, Grid, row_major_number
from reshard.geometry.row_major import Cut
from reshard.layout.tensor_spec import TensorSpec

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Bytes = npt.NDArray[np.uint8]

CELL_BYTES = 32 << 20
"""Size of a cell: large enough that runs are as long as the tensors allow."""


class Window(Struct, frozen=True):
    """Consecutive cells of a tensor.

    Attributes:
        spec: of the tensor; its storage is the grid of the cells.
        first, stop: the numbers of the cells, counted row-major.
        start, end: the bytes of the tensor that they hold.
    """

    spec: TensorSpec
    first: int
    stop: int
    start: int
    end: int

    @property
    def nbytes(self) -> int:
        return self.end - self.start

    @property
    def room(self) -> int:
        """Bytes of memory that it takes, so that the next window is aligned, too."""
        return -(-self.nbytes // ALIGNMENT) * ALIGNMENT

    @property
    def is_whole(self) -> bool:
        """True if it is all of the tensor."""
        return self.nbytes == self.spec.nbytes

    @property
    def is_last(self) -> bool:
        """True if the tensor ends with it."""
        return self.end == self.spec.nbytes

    def has(self, number: int) -> bool:
        """True if it has a cell."""
        return self.first <= number < self.stop

    def needs(self, box: Box) -> bool:
        """True if it may have elements of a box of the tensor."""
        touched = self.spec.storage.overlapping(box)
        if not all(touched):
            return False
        parts = self.spec.storage.parts
        low = row_major_number(tuple(one[0] for one in touched), parts)
        high = row_major_number(tuple(one[-1] for one in touched), parts)
        return low < self.stop and high >= self.first


def rounds(specs: Sequence[TensorSpec], most_bytes: int) -> Iterator[list[Window]]:
    """Every tensor in windows, by rounds of at most ``most_bytes``; a larger single cell is a round of its own."""
    current: list[Window] = []
    taken = 0
    for spec in specs:
        cells = in_cells(spec, most_bytes)
        for window in _windows(cells, most_bytes):
            if current and taken + window.room > most_bytes:
                yield current
                current, taken = [], 0
            current.append(window)
            taken += window.room
    if current:
        yield current


def in_cells(spec: TensorSpec, most_bytes: int) -> TensorSpec:
    """The tensor, stored in cells that are runs of its row-major bytes."""
    shape, itemsize = spec.shape, spec.itemsize
    if spec.nbytes <= min(CELL_BYTES, most_bytes):
        return replace(spec, storage=Grid.whole(shape))
    cut = Cut.of(shape, max(1, min(CELL_BYTES, most_bytes) // itemsize))
    cell = [1] * cut.dim + [cut.rows, *shape[cut.dim + 1 :]]
    return replace(spec, storage=Grid.regular(shape, cell))


def _windows(spec: TensorSpec, most_bytes: int) -> Iterator[Window]:
    """The cells of a tensor, as many together as fit; an empty tensor has one window without cells."""
    first = number = start = end = 0
    for box in spec.storage.boxes():
        nbytes = box.size * spec.itemsize
        if end > start and end - start + nbytes > most_bytes:
            yield Window(spec, first, number, start, end)
            first, start = number, end
        number, end = number + 1, end + nbytes
    yield Window(spec, first, number, start, end)
