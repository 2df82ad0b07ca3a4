"""AskedFills: the fills that targets need, before any strategy is chosen, in groups that may share a read and by their kinds.

::

    wanted piece   w.0 → a/0 | w.1 → a/1 | w.2 → a/2 | v → b, all but its last row | v → b, its last row
    tensor         a/0       | a/1       | a/2       | b
    fill           0         | 1         | 2         | 3                           | 4
    group          0         | 1         | 2         | 3, 4: both read v
    kind           0         | 0         | 0         | 1

Each kind is planned once, and all of its groups like it.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence

from msgspec import Struct

from reshard.planning.piece import check_tiled, spans_chunks
from reshard.planning.plans import FillAt
from reshard.planning.read_box import AnyWanted, geometry, geometry_alone

AskedFill = Sequence[AnyWanted]
"""The wanted pieces of one fill: one, or several whose pieces are assembled together."""

AskedTensor = AnyWanted | list[AskedFill]
"""The fills of a tensor. Most have one piece, which stands for itself: lists take 170 bytes."""


class AskedFills(Struct, frozen=True):
    """The fills of several targets.

    Attributes:
        tensors: those of each target.
        places: of all fills, by their numbers.
        groups: numbers of fills that may share a read; a fill that shares none stands for itself.
        kinds: the number of the kind of each group; groups of one kind are planned alike.
        firsts: the fills of the first group of each kind.
    """

    tensors: Sequence[Sequence[AskedTensor]]
    places: Sequence[FillAt]
    groups: Sequence[int | Sequence[int]]
    kinds: Sequence[int]
    firsts: Sequence[Sequence[AskedFill]]

    @classmethod
    def of(cls, wanted_pieces: Sequence[Sequence[AnyWanted]]) -> AskedFills:
        """The fills for the wanted pieces of each target; PlanError if the pieces of a tensor do not tile it."""
        tensors = [_tensors(of_target) for of_target in wanted_pieces]
        places = list(_places(tensors))
        groups = _sharing(tensors)
        known: dict[Hashable, int] = {}
        kinds: list[int] = []
        firsts: list[Sequence[AskedFill]] = []
        for group in groups:
            numbers = (group,) if isinstance(group, int) else group
            asked = [_fill_at(tensors, places[number]) for number in numbers]
            kinds.append(known.setdefault(_kind(asked), len(known)))
            if len(known) > len(firsts):
                firsts.append(asked)
        return cls(tensors, places, groups, kinds, firsts)

    def of_group(self, group: Sequence[int]) -> list[AskedFill]:
        """The wanted pieces of fills with these numbers."""
        return [_fill_at(self.tensors, self.places[number]) for number in group]

    @property
    def wanted_pieces(self) -> Iterator[AnyWanted]:
        """Every wanted piece."""
        for tensor in (tensor for of_target in self.tensors for tensor in of_target):
            for asked in fills_of(tensor):
                yield from asked


def fills_of(tensor: AskedTensor) -> Sequence[AskedFill]:
    """The fills of a tensor."""
    return tensor if isinstance(tensor, list) else ((tensor,),)


def _tensors(wanted_pieces: Sequence[AnyWanted]) -> list[AskedTensor]:
    """The fills of each tensor of a target, in the order of the wanted pieces."""
    by_name: dict[str, AnyWanted | list[AnyWanted]] = {}
    for wanted in wanted_pieces:
        first = by_name.setdefault(wanted.piece.target, wanted)
        if isinstance(first, list):
            first.append(wanted)
        elif first is not wanted:
            by_name[wanted.piece.target] = [first, wanted]
    return [_tensor(some) for some in by_name.values()]


def _tensor(some: AnyWanted | list[AnyWanted]) -> AskedTensor:
    if not isinstance(some, list):
        check_tiled(some.specs[1], [some.piece])
        return some
    pieces, target = [wanted.piece for wanted in some], some[0].target
    check_tiled(target.spec, pieces)
    is_in_pieces = target.raw and target.in_order is None
    if is_in_pieces or not spans_chunks(target.spec, pieces):
        return [(wanted,) for wanted in some]
    return [some]


def _places(tensors: Sequence[Sequence[AskedTensor]]) -> Iterator[FillAt]:
    for target, of_target in enumerate(tensors):
        for number, tensor in enumerate(of_target):
            for of in range(len(fills_of(tensor))):
                yield FillAt(target, number, of)


def _fill_at(tensors: Sequence[Sequence[AskedTensor]], at: FillAt) -> AskedFill:
    return fills_of(tensors[at.target][at.tensor])[at.fill]


def _sharing(tensors: Sequence[Sequence[AskedTensor]]) -> list[int | list[int]]:
    """Groups of fills that may share a read, in the order of the first of each: of one source tensor, in one view."""
    found: dict[Hashable, int | list[int]] = {}
    every = (asked for of_target in tensors for tensor in of_target for asked in fills_of(tensor))
    for number, asked in enumerate(every):
        piece = asked[0].piece
        key: Hashable = number
        if len(asked) == 1 and piece.fill is None:
            key = (piece.source, asked[0].specs[0].shape, piece.checkpoint, piece.source_view)
        first = found.setdefault(key, number)
        if isinstance(first, list):
            first.append(number)
        elif first is not number:
            found[key] = [first, number]
    return list(found.values())


def _kind(asked: Sequence[AskedFill]) -> Hashable:
    """A key of the fills of a group."""
    if len(asked) == 1 and len(asked[0]) == 1:
        return geometry_alone(asked[0][0])
    return tuple([geometry(wanted) for one in asked for wanted in one])
