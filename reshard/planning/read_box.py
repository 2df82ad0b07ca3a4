"""ReadBox: the box of a source that several wanted pieces read together, and the grids within it.

::

    WantedPiece  a piece that is to be planned, and the storage of its source and target; WantedLike in a few words
    ReadBox      wanted pieces that share a read: the box that they read, and the chunks of both sides within it
    SharedRead   a fill for each wanted piece, and the units in which tasks read the box

A source of 8 rows becomes two tensors::

    row          0        3  4     6     8
    source       |-----------|-----------|     chunks of 4 rows
    piece q      |--------|--------|           rows 0 to 6, target chunks of 3
    piece k                        |-----|     rows 6 to 8, a target chunk of 2
    box          |-----------------------|     read by both; q lies at (0, 6) in it, k at (6, 8)
    assembled    |--------|--------|-----|     the cuts of units that leave each target chunk in one unit
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Hashable, Sequence
from functools import cached_property, lru_cache
from itertools import pairwise
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from reshard.answers.shared import Strategy
from reshard.geometry.grid import Box, Cuts, Grid
from reshard.layout.tensor_spec import TensorSpec
from reshard.planning.piece import Piece, inverse, spans_chunks
from reshard.planning.plans import Fill, Price, Side
from reshard.planning.task_cost import (
    SECONDS_PER_TASK,
    Reading,
    TaskBuffers,
    UnpricedFill,
    decoded_bytes,
    price,
)


def best_halving(decoded: Callable[[Grid], int], units: Grid, assembled: Grid) -> Grid | None:
    """The units halved along the dimension that adds the least decoding, or None at single chunks."""
    halvings = [
        Grid(units.shape, (*units.cuts[:d], finer, *units.cuts[d + 1 :]))
        for d, cuts in enumerate(units.cuts)
        if (finer := _halve(cuts, assembled.cuts[d])) != cuts
    ]
    counted = [(decoded(u), i) for i, u in enumerate(halvings)]
    return halvings[min(counted)[1]] if counted else None


def first_halving(units: Grid, assembled: Grid) -> Grid | None:
    """The units halved along the first dimension in which they have several chunks, so that the chunks of each follow one
    another row-major; None at single chunks."""
    for d, cuts in enumerate(units.cuts):
        if (finer := _halve(cuts, assembled.cuts[d])) != cuts:
            return Grid(units.shape, (*units.cuts[:d], finer, *units.cuts[d + 1 :]))
    return None


@lru_cache(maxsize=4096)
def _halve(units: Cuts, cuts: Cuts) -> Cuts:
    """Cuts every unit that has more than one part near its middle, at a cut of ``cuts``."""
    position = {cut: i for i, cut in enumerate(cuts)}
    finer = [0]
    for a, b in pairwise(units):
        middle = (position[a] + position[b]) // 2
        if middle > position[a]:
            finer.append(cuts[middle])
        finer.append(b)
    return tuple(finer)


COPY_BYTES = 4 << 20
"""Memory to copy a range of a file in the kernel."""


class WantedPiece(Struct, frozen=True, dict=True):
    """A piece that is to be planned, and the storage of its source and target.

    Attributes:
        copy_bytes: memory to copy one chunk unchanged, if both sides store it alike.
    """

    piece: Piece
    source: Side
    target: Side
    copy_bytes: int = COPY_BYTES

    @property
    def specs(self) -> tuple[TensorSpec, TensorSpec]:
        """Source and target."""
        return self.source.spec, self.target.spec

    @property
    def sides(self) -> Sides:
        """A key of the storage of both sides."""
        counts = self.source.spec.storage.count, self.target.spec.storage.count
        stored = _stored(self.source), _stored(self.target)
        return Sides(*stored, self.copy_bytes, counts[0] > 1, counts[1] != 1)

    @property
    def full(self) -> WantedPiece:
        """Itself."""
        return self

    @cached_property
    def kind(self) -> Hashable:
        """Its ``geometry_alone``."""
        return geometry_alone(self)


class Sides(Struct, frozen=True, cache_hash=True):
    """A key of the storage of both sides of a wanted piece.

    Attributes:
        source_is_cut: true if it has several chunks.
        target_is_cut: the same, and true for an empty one, which has none.
    """

    source: Hashable
    target: Hashable
    copy_bytes: int
    source_is_cut: bool
    target_is_cut: bool


class Alike(Struct, frozen=True, eq=False):
    """The storage of wanted pieces whose sources and targets differ in names only.

    Attributes:
        wanted: one of them.
        sides: its key.
    """

    wanted: WantedPiece
    sides: Sides


class WantedLike(Struct, frozen=True, gc=False):
    """A wanted piece in a few words: its storage is that of others. There may be 300,000."""

    piece: Piece
    source_spec: TensorSpec
    target_spec: TensorSpec
    alike: Alike

    @property
    def specs(self) -> tuple[TensorSpec, TensorSpec]:
        """Source and target."""
        return self.source_spec, self.target_spec

    @property
    def source(self) -> Side:
        """The storage of its source."""
        return self.alike.wanted.source.of(self.source_spec)

    @property
    def target(self) -> Side:
        """The storage of its target."""
        return self.alike.wanted.target.of(self.target_spec)

    @property
    def sides(self) -> Sides:
        """A key of the storage of both sides."""
        return self.alike.sides

    @property
    def full(self) -> WantedPiece:
        """The same with the storage of another one, whose tensors have other names; for its price."""
        like = self.alike.wanted
        return WantedPiece(self.piece, like.source, like.target, like.copy_bytes)


AnyWanted = WantedPiece | WantedLike


def geometry(wanted: AnyWanted) -> Hashable:
    """A key of all that the choice of a strategy depends on, for wanted pieces that may share a read."""
    return (wanted.piece.source_box, wanted.piece.target_box, moved(wanted.piece), wanted.sides)


def geometry_alone(wanted: AnyWanted) -> Hashable:
    """The same key for a wanted piece that shares no read: of its places it has only the cuts of chunks.

    So 100,000 experts that become separate tensors have one key.
    """
    piece, sides = wanted.piece, wanted.sides
    taken: Hashable = piece.source_box.shape
    if sides.source_is_cut:
        viewed = piece.source_view is not None
        taken = piece.source_box if viewed else piece.source_grid(wanted.specs[0].storage).cuts
    target = wanted.specs[1]
    filled: Hashable = piece.fills(target)
    if not filled and sides.target_is_cut:
        filled = _filled(piece, target)
    return (taken, filled, moved(piece), sides)


def _filled(piece: Piece, target: TensorSpec) -> tuple[bool, Sequence[Cuts]]:
    """Tells for a part of a target with several chunks if they have elements of other pieces, and the cuts within the part.

    Without a view no grid is made: there may be 300,000 pieces.
    """
    box, storage = piece.target_box, target.storage
    if piece.target_view is not None:
        return spans_chunks(target, [piece]), piece.target_grid(storage).cuts
    cuts, spans = (
        storage.cuts_in(box),
        not (storage.are_cuts(box.start) and storage.are_cuts(box.stop)),
    )
    return spans, tuple([cuts[dim] for dim in inverse(piece.axis_order)])


def moved(piece: Piece) -> Hashable:
    """A key of what becomes of a piece's elements, but for its boxes and the numbers of its arithmetic."""
    return (
        piece.axis_order,
        piece.source_dtype,
        piece.target_dtype,
        piece.fill,
        piece.arithmetic is None,
        piece.source_view,
        piece.target_view,
    )


def _stored(side: Side) -> Hashable:
    spec = side.spec
    return (
        spec.shape,
        spec.storage.cuts,
        spec.chunk_shape,
        side.codec,
        side.raw,
        side.stream_bytes,
        side.encoded_bytes,
        None if side.in_order is None else side.in_order.cuts,
        side.ends_with_chunk,
        side.is_distant,
    )


class SharedRead(Struct, frozen=True):
    """The fills of wanted pieces that one read serves, in order; they share band and the memory of a task.

    Attributes:
        fills: one for each wanted piece, or that of another one which differs in names and places only.
        units: boxes that tasks read, in the source's view; for a joint fill, boxes of the target.
        numbers: of the wanted pieces, among those that may share a read.
    """

    fills: tuple[Fill, ...]
    units: Grid
    numbers: tuple[int, ...] = (0,)

    @property
    def task_bytes(self) -> int:
        return self.fills[0].price.task_bytes


class ReadBox(Struct, frozen=True):
    """The box of a source that wanted pieces read, and the grids within it.

    Attributes:
        is_one: true if each wanted piece wants all of the box.
        source: the chunks of the source.
        places: for each dimension, the start and stop of each wanted piece.
        targets: for each wanted piece the chunks of its target, counted from the start of its piece.
        kinds: a number for each wanted piece; wanted pieces of one number differ in names and places only.
    """

    wanted_pieces: Sequence[WantedPiece]
    box: Box
    is_one: bool
    source: Grid
    places: tuple[Sequence[tuple[int, int]], ...]
    targets: Sequence[Grid]
    kinds: Sequence[int]

    @classmethod
    def of(cls, wanted_pieces: Sequence[WantedPiece]) -> ReadBox:
        pieces = [wanted.piece for wanted in wanted_pieces]
        box = Box.around([piece.source_box for piece in pieces])
        first = wanted_pieces[0]
        view, storage = pieces[0].source_view, first.source.spec.storage
        source = (storage if view is None else view.grid(storage)).clip(box)
        places = [piece.source_box.relative_to(box.start) for piece in pieces]
        kinds = _kinds(wanted_pieces)
        of_kind = dict(zip(kinds, wanted_pieces, strict=True))
        chunks = {n: r.piece.target_grid(r.target.spec.storage) for n, r in of_kind.items()}
        return cls(
            wanted_pieces,
            box,
            all(piece.source_box == box for piece in pieces),
            source,
            _spans(places, box.rank),
            [chunks[kind] for kind in kinds],
            kinds,
        )

    def assembled(self, strategies: Sequence[Strategy]) -> Grid:
        """The cuts that leave whole target chunks of every block in each unit."""
        blocks = zip(self.targets, strategies, strict=True)
        whole = [grid if how == "block" else None for grid, how in blocks]
        cuts = [self._common(dim, whole) for dim in range(self.box.rank)]
        return Grid(self.box.shape, tuple(cuts))

    def _common(self, dim: int, wanted: Sequence[Grid | None]) -> Cuts:
        """The cuts of any grid along a dimension that cut no part of the ``wanted`` ones.

        Many pieces lie at one place along it, so that each place is looked at once.
        """
        starts = [start for start, _ in self.places[dim]]
        every = set(self.source.cuts[dim])
        for start, cuts in _placed(starts, self.targets, dim):
            every.update([start + cut for cut in cuts])
        order = sorted(every)
        for start, cuts in _placed(starts, wanted, dim):
            own = {start + cut for cut in cuts}
            inside = order[bisect_right(order, start) : bisect_left(order, start + cuts[-1])]
            every.difference_update([cut for cut in inside if cut not in own])
        return tuple(sorted(every))

    def unpriced(self, strategies: Sequence[Strategy], units: Grid) -> list[UnpricedFill]:
        """One unpriced fill for all wanted pieces that are alike in these units, in the order of the first of each."""
        own = self._own(units)
        keys = list(zip(self.kinds, strategies, map(id, own), strict=True))
        alike: dict[Hashable, list[int]] = {key: [] for key in dict.fromkeys(keys)}
        if len(alike) == 1:
            alike[keys[0]].extend(range(len(keys)))  # the common case of many pieces
        else:
            for number, key in enumerate(keys):
                alike[key].append(number)
        return [
            UnpricedFill(strategies[n], r.piece, r.source, r.target, own[n], numbers)
            for numbers in alike.values()
            for n, r in ((numbers[0], self.wanted_pieces[numbers[0]]),)
        ]

    def _own(self, units: Grid) -> list[Grid]:
        """The units as boxes of each piece; the same grid if they are equal."""
        if self.is_one:
            return [units] * len(self.wanted_pieces)
        shared: dict[Cuts, Cuts] = {}
        along = []
        for size, cuts, places in zip(units.shape, units.cuts, self.places, strict=True):
            line = Grid((size,), (cuts,))
            at = {(a, b): line.clip(Box((a,), (b,))).cuts[0] for a, b in set(places)}
            at = {place: shared.setdefault(own, own) for place, own in at.items()}
            along.append((at, places))
        if all(len(set(at.values())) == 1 for at, _ in along):
            one = tuple([next(iter(at.values())) for at, _ in along])
            return [Grid(tuple([cuts[-1] for cuts in one]), one)] * len(self.wanted_pieces)
        grids: dict[tuple[int, ...], Grid] = {}
        found = []
        for own in zip(*([at[place] for place in places] for at, places in along), strict=True):
            key = tuple(map(id, own))
            if key not in grids:
                grids[key] = Grid(tuple([cuts[-1] for cuts in own]), own)
            found.append(grids[key])
        return found

    def reading(self, units: Grid) -> Reading:
        first = self.wanted_pieces[0]
        return Reading(first.source, self.source, units, first.piece.source_view, self.box.start)

    def decoded_bytes(self, units: Grid) -> int:
        return decoded_bytes(self.reading(units))

    def read(
        self, unpriced: Sequence[UnpricedFill], units: Grid, buffers: TaskBuffers
    ) -> SharedRead:
        reading = self.reading(units)
        fills: list[Any] = [None] * len(self.wanted_pieces)
        for fill in unpriced:
            others = fill.numbers
            if others[0] == 0:  # it pays for decoding, and no other does
                fills[0] = self._priced(fill, reading, buffers, is_first=True)
                others = others[1:]
            if others:
                like = self._priced(fill, reading, buffers, is_first=False)
                for number in others:
                    fills[number] = like
        return SharedRead(tuple(fills), units)

    def _priced(
        self, fill: UnpricedFill, reading: Reading, buffers: TaskBuffers, *, is_first: bool
    ) -> Fill:
        cost = self._price(fill, reading, buffers, is_first=is_first)
        sides = (fill.source,), fill.target
        band, at_once = buffers.band_bytes, buffers.at_once
        gathered = buffers.gathered_bytes
        return Fill((fill.piece,), *sides, fill.strategy, fill.units, band, cost, at_once, gathered)

    def _price(
        self, fill: UnpricedFill, reading: Reading, buffers: TaskBuffers, *, is_first: bool
    ) -> Price:
        """The price of an unpriced fill. The first one pays for decoding, and for the tasks too if each takes another part of the read."""
        found = price(fill, reading, buffers, is_decoded=not is_first)
        if is_first or self.is_one:
            return found
        return replace(found, seconds=found.seconds - SECONDS_PER_TASK * fill.units.count)


def _spans(places: Sequence[Box], rank: int) -> tuple[Sequence[tuple[int, int]], ...]:
    """For each dimension, the start and stop of each box."""
    return tuple([(at.start[dim], at.stop[dim]) for at in places] for dim in range(rank))


def _kinds(wanted_pieces: Sequence[WantedPiece]) -> list[int]:
    if len(wanted_pieces) == 1:
        return [0]
    known: dict[Hashable, int] = {}
    return [known.setdefault(wanted.kind, len(known)) for wanted in wanted_pieces]


def _placed(starts: Sequence[int], grids: Sequence[Grid | None], dim: int) -> set[tuple[int, Cuts]]:
    """The start of each grid along a dimension, and its cuts there."""
    pairs = zip(starts, grids, strict=True)
    return {(start, grid.cuts[dim]) for start, grid in pairs if grid is not None}
