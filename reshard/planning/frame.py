"""Frame: the box of a source that several requests read together, and the grids within it."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from functools import lru_cache
from itertools import pairwise

from msgspec import Struct
from msgspec.structs import replace

from reshard.geometry.box import Box
from reshard.geometry.grid import Cuts, Grid
from reshard.planning.cost import SECONDS_PER_TASK, Draft, Pace, Reading, decoded_bytes, price
from reshard.planning.piece import Piece, spans_chunks
from reshard.planning.tensor_plan import Fill, Price, Side, Strategy, around


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
    """Every unit with more than one part is cut near its middle, at a cut of ``cuts``."""
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


class Request(Struct, frozen=True):
    """A piece, and how its source and target are stored.

    Attributes:
        copy_bytes: memory to copy one chunk unchanged, if both sides store it alike.
        tiles: a grid of the target tensor that units follow: none holds a part of a tile, unless the piece or a slice that is
            written in order ends within it. None where units are as the chunks make them.
    """

    piece: Piece
    source: Side
    target: Side
    copy_bytes: int = COPY_BYTES
    tiles: Grid | None = None

    @property
    def geometry(self) -> Hashable:
        """Everything that the choice of a strategy depends on, for requests that may share a read."""
        return (self.piece.source_box, self.piece.target_box, self._stored)

    @property
    def geometry_alone(self) -> Hashable:
        """The same for a request that shares no read: of places only how chunks are cut there.

        So 100,000 experts that become tensors of their own are all alike.
        """
        piece, source, target = self.piece, self.source.spec.storage, self.target.spec
        if self.tiles is not None or (piece.source_view is not None and source.count > 1):
            return self.geometry
        taken = (piece.source_box.shape, piece.source_grid(source).cuts)
        filled = (piece.target_grid(target.storage).cuts, spans_chunks(target, [piece]))
        return (taken, filled, self._stored)

    @property
    def _stored(self) -> Hashable:
        p = self.piece
        moved = (p.axis_order, p.source_dtype, p.target_dtype, p.fill, p.arithmetic is None)
        tiles = None if self.tiles is None else self.tiles.cuts
        sides = (p.source_view, _stored(self.source), p.target_view, _stored(self.target))
        return (moved, sides, self.copy_bytes, tiles)


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


class Choice(Struct, frozen=True):
    """A fill per request, in order; they share band and the memory of a task.

    Attributes:
        box: what is read, in the source's view; of a joint fill the box of the target that is filled.
        units: boxes of it, which tasks read.
    """

    fills: tuple[Fill, ...]
    box: Box
    units: Grid

    @property
    def task_bytes(self) -> int:
        return self.fills[0].price.task_bytes


class Frame(Struct, frozen=True):
    """The box of a source that requests read, and the grids within it.

    Attributes:
        is_one: whether each of them wants all of the box.
        source: the chunks of the source.
        targets: for each request, where a unit may be cut so that it holds whole target chunks.
        tiles: for each request that asks for tiles, where a unit may be cut so that it holds whole ones.
    """

    requests: Sequence[Request]
    box: Box
    is_one: bool
    source: Grid
    targets: tuple[Grid, ...]
    tiles: tuple[Grid, ...] = ()

    @classmethod
    def of(cls, requests: Sequence[Request]) -> Frame:
        pieces = [request.piece for request in requests]
        box = around([piece.source_box for piece in pieces])
        first = requests[0]
        view, storage = pieces[0].source_view, first.source.spec.storage
        source = (storage if view is None else view.grid(storage)).clip(box)
        grids = tuple(r.piece.target_grid(r.target.spec.storage) for r in requests)
        tiled = [(r.piece, r.tiles) for r in requests if r.tiles is not None]
        tiles = tuple(piece.target_grid(grid) for piece, grid in tiled)
        is_one = all(piece.source_box == box for piece in pieces)
        if not is_one:
            grids = _within(box, source, [piece.source_box for piece in pieces], grids)
            tiles = _within(box, source, [piece.source_box for piece, _ in tiled], tiles)
        return cls(requests, box, is_one, source, grids, tiles)

    def drafts(self, strategies: Sequence[Strategy], units: Grid) -> list[Draft]:
        return [
            Draft(strategy, r.piece, r.source, r.target, self._own(r.piece, units))
            for r, strategy in zip(self.requests, strategies, strict=True)
        ]

    def _own(self, piece: Piece, units: Grid) -> Grid:
        """The units as boxes of a piece."""
        return units if self.is_one else units.clip(piece.source_box.relative_to(self.box.start))

    def reading(self, units: Grid) -> Reading:
        first = self.requests[0]
        return Reading(first.source, self.source, units, first.piece.source_view, self.box.start)

    def decoded_bytes(self, units: Grid) -> int:
        return decoded_bytes(self.reading(units))

    def choice(self, drafts: Sequence[Draft], units: Grid, pace: Pace) -> Choice:
        reading = self.reading(units)
        fills = tuple(
            Fill(
                (draft.piece,),
                (draft.source,),
                draft.target,
                draft.strategy,
                draft.units,
                pace.band_bytes,
                self._price(draft, reading, pace, is_first=number == 0),
                pace.at_once,
            )
            for number, draft in enumerate(drafts)
        )
        return Choice(fills, self.box, units)

    def _price(self, draft: Draft, reading: Reading, pace: Pace, *, is_first: bool) -> Price:
        """The first pays for decoding; where each takes a part of what is read, also for the tasks."""
        found = price(draft, reading, pace, is_decoded=not is_first)
        if is_first or self.is_one:
            return found
        return replace(found, seconds=found.seconds - SECONDS_PER_TASK * draft.units.count)


def _within(
    box: Box, source: Grid, pieces: Sequence[Box], grids: Sequence[Grid]
) -> tuple[Grid, ...]:
    """The grids of pieces within a box that is larger than they are.

    A grid has the cuts of its own piece, and beyond it every cut that any other grid has there. Along a dimension many pieces
    lie at the same place: each place is looked at once.
    """
    along: list[list[Cuts]] = []
    for dim, cuts in enumerate(source.cuts):
        places = [
            (piece.start[dim] - box.start[dim], grid.cuts[dim])
            for piece, grid in zip(pieces, grids, strict=True)
        ]
        known: dict[tuple[int, Cuts], Cuts] = dict.fromkeys(places, ())
        every = {*cuts, *(first + cut for first, own in known for cut in own)}
        for first, own in known:
            outer = {c for c in every if c <= first or c >= first + own[-1]}
            known[first, own] = tuple(sorted(outer | {first + cut for cut in own}))
        along.append([known[place] for place in places])
    return tuple(Grid(box.shape, cuts) for cuts in zip(*along, strict=True))
