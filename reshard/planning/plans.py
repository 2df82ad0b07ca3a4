"""The records of a plan: MultiPlan has a Plan for each target, a Plan its TensorPlans, a TensorPlan the Fills that fill it.

Frozen data, no I/O. Most tensors have one fill of one piece: all of one tensor becomes all of another. Reads are the fills that one
decoding serves. No record of a plan can be in a cycle, so that Python's garbage collector skips them (``gc=False``): there may be
100,000 tensors.
"""

from __future__ import annotations

import heapq
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Protocol

from msgspec import Struct
from msgspec.structs import replace

from reshard.answers.record import MadeLater, counted, several
from reshard.answers.shared import Strategy
from reshard.geometry.grid import Box, Grid
from reshard.geometry.sizes import format_bytes
from reshard.geometry.view import View
from reshard.layout.tensor_spec import TensorSpec
from reshard.planning.piece import Piece


class Side(Struct, frozen=True, gc=False):
    """The storage of a tensor, as the source or the target of a piece.

    Attributes:
        codec: two sides with equal codec, dtype, chunk shape and cuts have identical bytes.
        raw: elements are at fixed offsets, so that a source can be read and a target written in pieces.
        stream_bytes: memory of one decoder (source) or of encoding one chunk (target).
        encoded_bytes: memory for the encoded bytes of a chunk that is decoded at once; 0 if that gains nothing.
        copies: number of times that each chunk of a target is written.
        in_order: the slices of a target within which chunks must be written one after the other, row-major; None if
            they can be written in any order.
        ends_with_chunk: true if the encoder's memory, ``stream_bytes``, is freed after each chunk of a target.
        is_distant: true if requests to a source have a long latency, as in a bucket.
    """

    spec: TensorSpec
    codec: str
    raw: bool
    stream_bytes: int
    encoded_bytes: int = 0
    copies: int = 1
    in_order: Grid | None = None
    ends_with_chunk: bool = True
    is_distant: bool = False

    def of(self, spec: TensorSpec) -> Side:
        """The storage of another tensor that is stored alike."""
        return replace(self, spec=spec)


class Price(Struct, frozen=True, gc=False):
    """The cost of a fill.

    Attributes:
        tasks: independent units of work.
        decoded_bytes: bytes decoded from source chunks, padding and repetition included.
        source_bytes: stored bytes of the touched source chunks; ``decoded / source`` is the amplification.
        written_bytes: bytes written, padding and checksums included.
        writes: contiguous writes.
        task_bytes: memory of one task.
        seconds: estimated processor time, for comparing strategies only; ``planning.estimates`` adds the rest.
    """

    tasks: int
    decoded_bytes: int
    source_bytes: int
    written_bytes: int
    writes: int
    task_bytes: int
    seconds: float

    @property
    def amplification(self) -> float:
        return self.decoded_bytes / self.source_bytes if self.source_bytes else 1.0


class Filling(Protocol):
    """A piece, and the storage of its source and target."""

    @property
    def piece(self) -> Piece: ...
    @property
    def source(self) -> Side: ...
    @property
    def target(self) -> Side: ...


class Fill(Struct, frozen=True, gc=False):
    """Pieces of a target tensor that the same units write, and the strategy that moves them.

    Attributes:
        pieces: one, or several that share chunks of the target.
        sources: the storage of each piece's source.
        units: boxes of the piece; for several pieces, boxes of the target, counted from the start of ``box``.
            One task fills each.
        band_bytes: decoded bytes that each task moves at once.
        at_once: true if each task decodes source chunks at once instead of in a stream.
        gathered_bytes: decoded bytes of turned bands that each task gathers before it writes them; 0 if bands are written one by one.
    """

    pieces: tuple[Piece, ...]
    sources: tuple[Side, ...]
    target: Side
    strategy: Strategy
    units: Grid
    band_bytes: int
    price: Price
    at_once: bool = False
    gathered_bytes: int = 0

    def __repr__(self) -> str:
        return f"Fill({self.source.spec.change_to(self.target.spec)}, {self.strategy})"

    def of(self, asked: Sequence[Filling], target: Side) -> Fill:
        """The same for other pieces that differ in names and places only."""
        pieces, sources = [one.piece for one in asked], [one.source for one in asked]
        return replace(self, pieces=tuple(pieces), sources=tuple(sources), target=target)

    @property
    def piece(self) -> Piece:
        """Its piece, or the first of them."""
        return self.pieces[0]

    @property
    def source(self) -> Side:
        """The storage of the source of its piece, or of the first of them."""
        return self.sources[0]

    @property
    def is_joint(self) -> bool:
        """True if its units are boxes of the target, since several pieces are assembled in them."""
        return len(self.pieces) > 1

    @property
    def box(self) -> Box:
        """The smallest box of the target that holds its pieces."""
        return Box.around([piece.to_target(Box.full(piece.shape)) for piece in self.pieces])

    def changes(self, number: int) -> bool:
        """True if the target's row-major bytes are not those of the source of piece ``number``."""
        piece, source = self.pieces[number], self.sources[number].spec
        boxes = (Box.full(source.shape), Box.full(self.target.spec.shape))
        is_in_order = piece.axis_order == tuple(range(len(piece.axis_order)))
        is_whole = (piece.source_box, piece.target_box) == boxes
        return piece.is_computed or piece.is_viewed or not is_whole or not is_in_order

    @property
    def moved_bytes(self) -> int:
        """Bytes of the source's elements that it moves."""
        moved = zip(self.pieces, self.sources, strict=True)
        return sum(math.prod(piece.shape) * side.spec.itemsize for piece, side in moved)


class TensorPlan(Struct, frozen=True, gc=False):
    """One target tensor and the fills that fill it.

    Its units are the units of its fills, one fill after the other.
    """

    fills: tuple[Fill, ...]

    def __repr__(self) -> str:
        return f"TensorPlan({self.source.spec.change_to(self.target.spec)}, {self.strategy})"

    @property
    def name(self) -> str:
        """Name of the target tensor."""
        return self.fills[0].target.spec.name

    @property
    def target(self) -> Side:
        """The storage of the target."""
        return self.fills[0].target

    @property
    def pieces(self) -> tuple[Piece, ...]:
        """Every piece, in the order of the fills."""
        return tuple(piece for fill in self.fills for piece in fill.pieces)

    @property
    def piece(self) -> Piece:
        """Its piece, or the first of them."""
        return self.fills[0].piece

    @property
    def source(self) -> Side:
        """The storage of the source of its piece, or of the first of them."""
        return self.fills[0].source

    @property
    def changes_bytes(self) -> bool:
        """True if its row-major bytes are not those of one source; then all of its pieces change them."""
        return self.fills[0].changes(0)

    @property
    def strategy(self) -> Strategy:
        """The strategy of its first fill."""
        return self.fills[0].strategy

    @property
    def unit_count(self) -> int:
        """Units of all fills together."""
        return sum(fill.units.count for fill in self.fills)

    @property
    def price(self) -> Price:
        """The cost of all fills together."""
        prices = [fill.price for fill in self.fills]
        if len(prices) == 1:
            return prices[0]
        return Price(
            sum(p.tasks for p in prices),
            sum(p.decoded_bytes for p in prices),
            sum(p.source_bytes for p in prices),
            sum(p.written_bytes for p in prices),
            sum(p.writes for p in prices),
            max(p.task_bytes for p in prices),
            sum(p.seconds for p in prices),
        )

    @property
    def moved_bytes(self) -> int:
        """Bytes of the sources' elements that are moved into it."""
        return sum(fill.moved_bytes for fill in self.fills)

    def unit_bytes(self, unit: int) -> int:
        """Bytes of the sources' elements in a unit."""
        fill, number = self.fill_at(unit)
        box = fill.units.box(fill.units.index_at(number))
        if not fill.is_joint:
            return box.size * fill.source.spec.itemsize
        place, moved = box.shift(fill.box.start), zip(fill.pieces, fill.sources, strict=True)
        return sum(x.size * side.spec.itemsize for piece, side in moved for x in piece.of_target(place))  # fmt: skip

    def fill_at(self, unit: int) -> tuple[Fill, int]:
        """The fill that has a unit, and the unit's number within that fill. Raises IndexError for no such unit."""
        for fill in self.fills:
            if unit < fill.units.count:
                return fill, unit
            unit -= fill.units.count
        raise IndexError(unit)


Filled = tuple[Filling, Fill] | tuple[Sequence[Sequence[Filling]], list[Fill]]
"""A tensor's piece and a fill like its own; or the pieces of each of its fills, and fills like those."""


class TensorPlans(MadeLater[TensorPlan]):
    """Plans of tensors, each made when it is looked at, and the prices of their fills."""

    def __init__(self, items: Sequence[Filled]) -> None:
        super().__init__(items, _tensor_plan)
        self.prices = [fill.price for _, some in items for fill in _listed(some)]

    @property
    def unlike(self) -> Iterator[TensorPlan]:
        """The plans without those that differ from an earlier one in names and places only."""
        seen = set()
        for item in self._items:
            like = tuple(map(id, _listed(item[1])))
            if like not in seen:
                seen.add(like)
                yield _tensor_plan(item)


def _listed(fills: Fill | list[Fill]) -> Sequence[Fill]:
    return fills if isinstance(fills, list) else (fills,)


def _tensor_plan(item: Any) -> TensorPlan:
    asked, fills = item
    if not isinstance(fills, list):
        return TensorPlan((fills.of([asked], asked.target),))
    side, every = asked[0][0].target, zip(fills, asked, strict=True)
    return TensorPlan(tuple([fill.of(pieces, side) for fill, pieces in every]))


class Plan(Struct, frozen=True):
    """Every target tensor, and the limits of the run.

    Attributes:
        max_memory: bytes that all buffers of the run together may take.
        allowed_bytes: bytes that were allowed for buffers, metadata and processes together; 0 if no limit was given.
        workers: number of tasks that run at the same time, if memory allows.
        metadata_bytes: memory that the checkpoint's index and the plan itself take.
        processes: number of processes that share the workers; 0 for threads of one process.
    """

    tensors: Sequence[TensorPlan]
    max_memory: int
    workers: int
    metadata_bytes: int = 0
    allowed_bytes: int = 0
    processes: int = 0

    def __repr__(self) -> str:
        memory = f"{format_bytes(self.peak_bytes)} of {format_bytes(self.max_memory)} of buffers"
        headline = (
            f"{counted(len(self.tensors), 'tensor')} in {counted(self.tasks, 'task')}, {memory}"
        )
        return several("Plan", headline, self.tensors)

    @property
    def fills(self) -> Iterator[Fill]:
        """The fills of all tensors."""
        return (fill for tensor in self.tensors for fill in tensor.fills)

    @property
    def prices(self) -> Sequence[Price]:
        """The price of each fill."""
        if isinstance(self.tensors, TensorPlans):
            return self.tensors.prices
        return [fill.price for fill in self.fills]

    @property
    def unlike(self) -> Iterable[TensorPlan]:
        """The tensors without those that differ from an earlier one in names and places only."""
        return self.tensors.unlike if isinstance(self.tensors, TensorPlans) else self.tensors

    @property
    def tasks(self) -> int:
        return sum(p.tasks for p in self.prices)

    @property
    def decoded_bytes(self) -> int:
        return sum(p.decoded_bytes for p in self.prices)

    @property
    def source_bytes(self) -> int:
        return sum(p.source_bytes for p in self.prices)

    @property
    def written_bytes(self) -> int:
        return sum(p.written_bytes for p in self.prices)

    @property
    def amplification(self) -> float:
        return self.decoded_bytes / self.source_bytes if self.source_bytes else 1.0

    @property
    def peak_bytes(self) -> int:
        """Buffers in memory at the worst moment; never above ``max_memory``."""
        return min(self.max_memory, peak_of(self.prices, self.workers))


def peak_of(prices: Iterable[Price], workers: int) -> int:
    """The most bytes that ``workers`` tasks take at once."""
    biggest: list[int] = []
    for price, count in Counter(prices).items():
        for _ in range(min(count * price.tasks, workers)):
            heapq.heappush(biggest, price.task_bytes)
            if len(biggest) > workers:
                heapq.heappop(biggest)
    return sum(biggest)


class FillAt(Struct, frozen=True, gc=False):
    """One fill: number ``fill`` of tensor number ``tensor`` in the plan of target number ``target``."""

    target: int
    tensor: int
    fill: int = 0


class Read(Struct, frozen=True, gc=False):
    """Fills whose units are filled together, each source chunk decoded once for all of them.

    Either each fill has one piece, all of one tensor in one view; or there is one fill of several pieces.

    Attributes:
        box: the elements that are read, in the source's view; for several pieces, the box of the target that is filled.
        units: boxes of it, counted from its start. One task reads each for all fills that need it.
    """

    fills: tuple[FillAt, ...]
    box: Box
    units: Grid

    @classmethod
    def of(cls, places: Sequence[FillAt], fills: Sequence[Fill], units: Grid) -> Read:
        """Fills at these places that share units."""
        first = fills[0]
        box = first.box if first.is_joint else Box.around([fill.piece.source_box for fill in fills])
        return cls(tuple(places), box, units)


class MultiPlan(Struct, frozen=True):
    """Plans for several targets of one source, carried out in one run.

    Attributes:
        reads: groups of fills that one decoding serves. They share units, band and the memory of a task.
    """

    plans: tuple[Plan, ...]
    reads: Sequence[Read]

    @classmethod
    def alone(cls, plan: Plan) -> MultiPlan:
        """The plan of a single target whose fills share no read."""
        return cls(
            (plan,),
            tuple(
                Read.of([FillAt(0, number, of)], [fill], fill.units)
                for number, tensor in enumerate(plan.tensors)
                for of, fill in enumerate(tensor.fills)
            ),
        )

    def fill(self, at: FillAt) -> Fill:
        return self.plans[at.target].tensors[at.tensor].fills[at.fill]

    def price(self, read: Read) -> Price:
        """The cost of reading, which is in the price of the first fill."""
        return self.fill(read.fills[0]).price

    @property
    def max_memory(self) -> int:
        """Bytes that all buffers of the run together may take."""
        return self.plans[0].max_memory

    @property
    def workers(self) -> int:
        return self.plans[0].workers

    @property
    def processes(self) -> int:
        return self.plans[0].processes

    @property
    def tasks(self) -> int:
        return sum(x.units.count for x in (self._leading() if self._is_apart else self.reads))

    @property
    def decoded_bytes(self) -> int:
        """Bytes decoded from source chunks, for all targets together."""
        return sum(price.decoded_bytes for price in self._prices())

    @property
    def source_bytes(self) -> int:
        """Bytes of the source chunks that any target needs. A chunk counts once, unless several boxes of its tensor touch it."""
        total = 0
        boxes: dict[tuple[int, str], dict[tuple[View | None, Box], int]] = defaultdict(dict)
        stored: dict[tuple[int, str], int] = {}
        for fill in self._leading():
            piece, nbytes = fill.piece, fill.price.source_bytes
            if fill.is_joint:
                total += nbytes
            else:
                boxes[piece.key][piece.source_view, piece.source_box] = nbytes
                stored[piece.key] = fill.source.spec.stored_bytes
        # Several boxes of a tensor may touch the same chunks, but never more than all chunks.
        return total + sum(min(sum(of.values()), stored[key]) for key, of in boxes.items())

    @property
    def repeated_bytes(self) -> int:
        """Bytes that are read and decoded again, because the memory is too small or because it is cheaper."""
        return self.decoded_bytes - self.source_bytes

    @property
    def amplification(self) -> float:
        return self.decoded_bytes / self.source_bytes if self.source_bytes else 1.0

    @property
    def written_bytes(self) -> int:
        return sum(plan.written_bytes for plan in self.plans)

    @property
    def peak_bytes(self) -> int:
        """Buffers in memory at the worst moment; never above ``max_memory``."""
        return min(self.max_memory, peak_of(self._prices(), self.workers))

    def _prices(self) -> Iterable[Price]:
        """The cost of each read, which is in the price of its first fill."""
        apart = (price for plan in self.plans for price in plan.prices)
        return apart if self._is_apart else (fill.price for fill in self._leading())

    @property
    def _is_apart(self) -> bool:
        """True if no fill shares a read; then no read need be made."""
        return sum(len(plan.prices) for plan in self.plans) == len(self.reads)

    def _leading(self) -> Iterator[Fill]:
        """The first fill of each read, which pays for it."""
        apart = (fill for plan in self.plans for fill in plan.fills)
        return apart if self._is_apart else (self.fill(read.fills[0]) for read in self.reads)
