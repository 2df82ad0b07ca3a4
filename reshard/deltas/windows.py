"""Windows: row-major bytes of target tensors, side by side for OLD and NEW, and how a checkpoint fills them.

::

    tensors   |  a  |      b      |        c         |
    rounds    |  a, b  |  c, its first cells |  the others of c |

A tensor is made in cells, each a run of its row-major bytes. A round has the cells that fit the memory, of as many tensors as fit.

A tensor that a source has whole and in this order is streamed into place. One that a map puts together goes through the engine, as a conversion
whose chunks have no place; its elements come in any order.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from threading import Lock
from typing import TYPE_CHECKING, Any

from msgspec import Struct
from msgspec.structs import replace

from reshard.checksums.sums import digest_of_bytes
from reshard.engine.buffers import ALIGNMENT
from reshard.engine.decode.box_plan import StoredBox, plan_box
from reshard.engine.decode.chunk_reader import check_recorded
from reshard.engine.limits import Limits
from reshard.engine.read_boxes import fill_array
from reshard.errors import MemoryBudgetError, VerificationError
from reshard.formats.base import Reader
from reshard.formats.codecs import is_seekable
from reshard.formats.contents import StoredTensor
from reshard.geometry.dtypes import element_dtype, opaque_dtype
from reshard.geometry.grid import Box, Grid, Index, row_major_number
from reshard.geometry.row_major import Cut
from reshard.layout.tensor_spec import TensorSpec
from reshard.maps.make import Keeping, make_tensors
from reshard.maps.mapped import MappedTensor

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


class _Wanted(Struct, frozen=True):
    """A window to fill, and the pieces of its tensor."""

    window: Window
    made: MappedTensor
    memory: Any


def fill_windows(
    reader: Reader,
    made: Sequence[MappedTensor],
    windows: Sequence[Window],
    memory: Bytes,
    limits: Limits,
) -> list[Bytes]:
    """The bytes of each window, made of a checkpoint in the threads of the run; ``memory`` has room for all of them.

    Raises CorruptError where a chunk does not decode, and where a tensor that is read whole and once does not have its recorded
    digest.
    """
    wanted = _placed(made, windows, memory)
    most = limits.max_memory // limits.workers
    streamed = [one for one in wanted if is_streamed(reader, one.made, one.window.nbytes, most)]
    with ThreadPoolExecutor(limits.workers, "reshard.delta") as threads:
        for _ in threads.map(lambda one: _stream(reader, one, most), streamed):
            pass
    if others := [one for one in wanted if one not in streamed]:
        _make(reader, others, limits)
    return [one.memory for one in wanted]


def stream_windows(
    reader: Reader,
    made: Sequence[MappedTensor],
    windows: Sequence[Window],
    memory: Bytes,
    max_memory: int,
) -> list[Bytes]:
    """Fills the windows of tensors for which ``is_streamed`` holds, in this thread alone."""
    wanted = _placed(made, windows, memory)
    for one in wanted:
        _stream(reader, one, max_memory)
    return [one.memory for one in wanted]


def _placed(
    made: Sequence[MappedTensor], windows: Sequence[Window], memory: Bytes
) -> list[_Wanted]:
    wanted: list[_Wanted] = []
    at = 0
    for window, one in zip(windows, made, strict=True):
        wanted.append(_Wanted(window, one, memory[at : at + window.nbytes]))
        at += window.room
    return wanted


def is_streamed(reader: Reader, made: MappedTensor, window_bytes: int, max_memory: int) -> bool:
    """True if the tensor is one of the source, whole and in its order, and one thread can read windows of so many bytes of it alone, in
    its share of the memory."""
    if len(made.pieces) != 1:
        return False
    (piece,) = made.pieces
    if piece.fill is not None or piece.is_viewed or piece.arithmetic is not None:
        return False
    stored = reader.tensors[piece.source]
    full = Box.full(stored.spec.shape)
    is_same = piece.source_box == full and stored.spec.shape == made.spec.shape
    is_in_order = piece.axis_order == tuple(range(full.rank))
    is_alone = window_bytes >= made.spec.nbytes or is_seekable(stored.encoding)
    return is_same and is_in_order and is_alone and _fits(stored, made, piece.saturate, max_memory)


def _fits(stored: StoredTensor, made: MappedTensor, saturate: bool, max_memory: int) -> bool:
    try:
        plan_box(
            StoredBox(stored, Box.full(made.spec.shape), made.spec.dtype, saturate), max_memory
        )
    except MemoryBudgetError:
        return False
    return True


def _stream(reader: Reader, wanted: _Wanted, max_memory: int) -> None:
    """Reads a window cell by cell; reads a whole tensor in one go, and compares its recorded digest."""
    window, (piece,) = wanted.window, wanted.made.pieces
    spec, stored = window.spec, reader.tensors[piece.source]
    kind = element_dtype(spec.dtype, is_cast=piece.is_cast)
    whole = Box.full(spec.shape)
    cells = (spec.storage.box(spec.storage.index_at(n)) for n in range(window.first, window.stop))
    at = 0
    for box in [whole] if window.is_whole else cells:
        side = StoredBox(stored, box, spec.dtype, piece.saturate)
        out = wanted.memory[at : at + side.nbytes].view(kind).reshape(box.shape)
        at += side.nbytes
        fill_array(side, reader, out, max_memory)
    if stored.digest is not None and window.is_whole and not piece.is_cast:
        check_recorded(spec.name, f"{digest_of_bytes(wanted.memory.data):016x}", stored.digest)


class WindowFilling:
    """The bytes of a window while it is filled; elements come in any order, from any thread."""

    def __init__(self, window: Window, memory: Bytes) -> None:
        self.window = window
        self.memory = memory
        self._left = window.nbytes
        self._lock = Lock()
        self._kind = opaque_dtype(window.spec.itemsize)

    def put(self, box: Box, elements: npt.NDArray[Any]) -> None:
        """Takes the elements of a box of the tensor; ignores those of other windows."""
        storage = self.window.spec.storage
        for index in product(*storage.overlapping(box)):
            inside = storage.box(index).intersect(box)
            if inside is not None and self.window.has(storage.number_of(index)):
                self._put(index, inside, elements[inside.relative_to(box.start).slices])

    def _put(self, index: Index, inside: Box, elements: npt.NDArray[Any]) -> None:
        spec = self.window.spec
        cell = spec.storage.box(index)
        start = row_major_number(cell.start, spec.shape) * spec.itemsize - self.window.start
        memory = self.memory[start : start + cell.size * spec.itemsize]
        place = memory.view(self._kind).reshape(cell.shape)
        place[inside.relative_to(cell.start).slices] = elements.view(self._kind)
        with self._lock:
            self._left -= inside.size * spec.itemsize

    def check(self) -> None:
        """Raises VerificationError unless every byte came once."""
        if self._left:
            raise VerificationError(
                f"{self.window.spec.name!r}: {abs(self._left)} bytes were {'not made' if self._left > 0 else 'made twice'}; this is a defect of the "
                "program, please report it"
            )


def _make(reader: Reader, wanted: Sequence[_Wanted], limits: Limits) -> None:
    """Makes the windows through the engine."""
    fillings = {one.window.spec.name: WindowFilling(one.window, one.memory) for one in wanted}
    tensors = [replace(one.made, spec=one.window.spec) for one in wanted]
    is_all = all(one.window.is_whole for one in wanted)
    keeping = Keeping(
        lambda name, box, elements: fillings[name].put(box, elements),
        None if is_all else lambda name, box: fillings[name].window.needs(box),
    )
    found = make_tensors(reader, tensors, limits, keeping)
    for filling in fillings.values():
        filling.check()
    for (_, name), digest in found.books.source_digests().items() if is_all else ():
        check_recorded(name, digest, reader.tensors[name].digest or digest)
