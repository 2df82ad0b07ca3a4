"""Pairs of tensors, read side by side in blocks; chunks of both end at the edges of a block, so each block stands alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from msgspec import Struct
from msgspec.structs import replace

from reshard.checksums.tensor_digest import row_major
from reshard.engine.decode.box_plan import StoredBox, least_bytes, plan_boxes
from reshard.engine.read_boxes import BATCH_BYTES, BoxUnit
from reshard.errors import MemoryBudgetError
from reshard.formats.contents import StoredTensor
from reshard.geometry.grid import Box, Cuts, Grid
from reshard.planning.planner import allowed_text, open_files_per_task
from reshard.verification.elements import COMPARE_BYTES, Comparing, Differences

if TYPE_CHECKING:
    import numpy.typing as npt

    Array = npt.NDArray[Any]

MIB = 1 << 20


class TensorPair(Struct, frozen=True):
    """Two stored tensors of one shape.

    Attributes:
        number: among all pairs.
        blocks: the grid of the chunk edges that both share.
        edges: all chunk edges of both, for each dimension.
    """

    number: int
    a: StoredTensor
    b: StoredTensor
    comparing: Comparing
    blocks: Grid
    edges: tuple[Cuts, ...]

    @classmethod
    def of(cls, number: int, a: StoredTensor, b: StoredTensor) -> TensorPair:
        one, other = a.spec.storage, b.spec.storage
        comparing = Comparing.of(a.spec.dtype, b.spec.dtype, is_key=a.is_key)
        return cls(number, a, b, comparing, one.common(other), one.refine(other).cuts)

    @property
    def nbytes(self) -> int:
        """Decoded bytes of both."""
        return self.a.spec.nbytes + self.b.spec.nbytes

    def sides(self, box: Box) -> tuple[StoredBox, StoredBox]:
        """A box of both tensors."""
        return StoredBox.of(self.a, box), StoredBox.of(self.b, box)


class PairSink:
    """Compares the elements of two tensors in a block (a ``BandSink``)."""

    is_dense = True

    def __init__(self, unit: BoxUnit[TensorPair]) -> None:
        self._pair = unit.of
        self._found = Differences()

    def direct(self, _: Box) -> None:
        """None, since it keeps no elements."""

    def take(self, band: Box, *elements: Array) -> None:
        """Counts the differences of a band."""
        a, b = [each.reshape(-1).view("u1") for each in elements]
        found = self._pair.comparing.elements(a, b)
        if found.at is not None:
            found = replace(found, at=_number(found.at, band, self._pair.a.spec.shape))
        self._found = self._found + found

    def done(self) -> Differences:
        """The differences of the block; ``at`` counts within the tensor."""
        return self._found


def _number(at: int, band: Box, shape: tuple[int, ...]) -> int:
    """The row-major number within the tensor of element ``at`` of a band."""
    around = row_major(shape, 1)
    return sum(
        (start + at // step % size) * stride
        for start, size, step, stride in zip(
            band.start, band.shape, row_major(band.shape, 1), around, strict=True
        )
    )


def check_pairs(pairs: Sequence[TensorPair], max_memory: int, metadata_bytes: int) -> None:
    """Raises MemoryBudgetError, before anything is read, if the budget is too small for a pair."""
    needs = [COMPARE_BYTES + least_bytes(p.sides(Box.full(p.a.spec.shape))) for p in pairs]
    need = max(needs, default=0)
    if need <= max_memory:
        return
    pair = pairs[needs.index(need)]
    mib, smallest = -(-need // MIB), -(-(need + metadata_bytes) // MIB)
    raise MemoryBudgetError(
        f"to compare {pair.a.spec.name!r} of shape {list(pair.a.spec.shape)} needs at least {mib} MiB of buffers "
        f"({_chunks(pair.a)} in A and {_chunks(pair.b)} in B), but {allowed_text(max_memory, metadata_bytes)}; "
        f"allow max_memory of {smallest}MiB",
        smallest_bytes=smallest * MIB,
    )


def _chunks(stored: StoredTensor) -> str:
    shape = stored.spec.chunk_shape or stored.spec.storage.largest
    codec = "raw" if stored.encoding.compressor == "none" else stored.encoding.compressor
    return f"{codec} chunks of {'×'.join(map(str, shape)) or 'a scalar'}"


def pair_units(
    pairs: Sequence[TensorPair], max_memory: int, workers: int
) -> Iterator[BoxUnit[TensorPair]]:
    """Every block; large tensors come first, so that no worker is left with one at the end."""

    def size(pair: TensorPair) -> int:
        return pair.nbytes if pair.nbytes > BATCH_BYTES else 0

    share, most_open = max_memory // workers, open_files_per_task(workers) // 2
    for pair in sorted(pairs, key=size, reverse=True):
        for box in pair.blocks.boxes():
            sides = pair.sides(box)
            plan = plan_boxes(sides, max_memory - COMPARE_BYTES, share - COMPARE_BYTES, most_open)
            nbytes = sum(side.nbytes for side in sides)
            memory = plan.memory_bytes + COMPARE_BYTES
            yield BoxUnit(pair, sides, plan, pair.edges, nbytes, memory)
