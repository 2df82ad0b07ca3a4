"""Windows: row-major bytes of target tensors that are made in memory, side by side for OLD and NEW.

::

    tensors   |  a  |      b      |        c         |
    rounds    |  a, b  |  c, its first cells |  the others of c |

A tensor is made in cells, each a run of its row-major bytes. A round has the cells that fit the memory, of as many tensors as fit.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from threading import Lock
from typing import TYPE_CHECKING, Any

from msgspec import Struct
from msgspec.structs import replace

from reshard.engine.buffers import ALIGNMENT
from reshard.engine.decode.chunk_reader import check_recorded
from reshard.engine.limits import Limits
from reshard.errors import VerificationError
from reshard.formats.base import Reader
from reshard.geometry.box import Box
from reshard.geometry.dtypes import opaque_dtype
from reshard.geometry.grid import Grid, Index
from reshard.geometry.row_major import Cut
from reshard.layout.tensor_spec import TensorSpec
from reshard.maps.make import Keeping, make_tensors
from reshard.maps.mapped import MappedTensor

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Bytes = npt.NDArray[np.uint8]

CELL_BYTES = 32 << 20
"""Large enough that runs are as long as the tensors allow."""


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
        """Whether it is all of the tensor."""
        return self.nbytes == self.spec.nbytes

    @property
    def is_last(self) -> bool:
        """Whether the tensor ends with it."""
        return self.end == self.spec.nbytes

    def has(self, number: int) -> bool:
        """Whether it has a cell."""
        return self.first <= number < self.stop

    def needs(self, box: Box) -> bool:
        """Whether it may have elements of a box of the tensor."""
        touched = self.spec.storage.overlapping(box)
        if not all(touched):
            return False
        parts = self.spec.storage.parts
        low = _number(tuple(one[0] for one in touched), parts)
        high = _number(tuple(one[-1] for one in touched), parts)
        return low < self.stop and high >= self.first


def rounds(specs: Sequence[TensorSpec], most_bytes: int) -> Iterator[list[Window]]:
    """Every tensor in windows, those of a round of at most ``most_bytes`` together, but for one that is a single cell."""
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


class Filling:
    """The bytes of a window in the making; elements come in any order, from any thread."""

    def __init__(self, window: Window, memory: Bytes) -> None:
        self.window = window
        self.memory = memory
        self._left = window.nbytes
        self._lock = Lock()
        self._kind = opaque_dtype(window.spec.itemsize)

    def put(self, box: Box, elements: npt.NDArray[Any]) -> None:
        """Takes the elements of a box of the tensor; those of other windows are passed over."""
        storage = self.window.spec.storage
        for index in product(*storage.overlapping(box)):
            inside = storage.box(index).intersect(box)
            if inside is not None and self.window.has(_number(index, storage.parts)):
                self._put(index, inside, elements[inside.relative_to(box.start).slices])

    def _put(self, index: Index, inside: Box, elements: npt.NDArray[Any]) -> None:
        spec = self.window.spec
        cell = spec.storage.box(index)
        start = _offset(cell.start, spec.shape) * spec.itemsize - self.window.start
        memory = self.memory[start : start + cell.size * spec.itemsize]
        place = memory.view(self._kind).reshape(cell.shape)
        place[inside.relative_to(cell.start).slices] = elements.view(self._kind)
        with self._lock:
            self._left -= inside.size * spec.itemsize

    def check(self) -> None:
        """Raises VerificationError unless every byte came, once."""
        if self._left:
            raise VerificationError(
                f"{self.window.spec.name!r}: {abs(self._left)} bytes were {'not made' if self._left > 0 else 'made twice'}; this is a defect of the "
                "program, please report it"
            )


def fill_windows(
    reader: Reader,
    made: Sequence[MappedTensor],
    windows: Sequence[Window],
    memory: Bytes,
    limits: Limits,
) -> list[Bytes]:
    """The bytes of each window, made of a checkpoint; ``memory`` has room for all of them.

    Raises CorruptError where a chunk does not decode, and where a tensor that is read whole and once has not the digest that is
    recorded of it.
    """
    fillings: dict[str, Filling] = {}
    at = 0
    for window in windows:
        fillings[window.spec.name] = Filling(window, memory[at : at + window.nbytes])
        at += window.room
    tensors = [replace(one, spec=w.spec) for one, w in zip(made, windows, strict=True)]
    is_all = all(window.is_whole for window in windows)
    keeping = Keeping(
        lambda name, box, elements: fillings[name].put(box, elements),
        None if is_all else lambda name, box: fillings[name].window.needs(box),
    )
    found = make_tensors(reader, tensors, limits, keeping)
    for filling in fillings.values():
        filling.check()
    for (_, name), digest in found.books.source_digests().items() if is_all else ():
        check_recorded(name, digest, reader.tensors[name].digest or digest)
    return [fillings[window.spec.name].memory for window in windows]


def _number(index: Index, parts: Sequence[int]) -> int:
    number = 0
    for at, count in zip(index, parts, strict=True):
        number = number * count + at
    return number


def _offset(start: Sequence[int], shape: Sequence[int]) -> int:
    return _number(tuple(start), shape)
