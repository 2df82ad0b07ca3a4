"""Compiles a rule: sizes from shapes, patterns from both sides, the indices over which its targets run, and the pieces of each target."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from itertools import chain, product
from typing import TypeVar

from msgspec import Struct

from reshard.errors import PlanError
from reshard.geometry.dtypes import PACKED
from reshard.geometry.grid import Box
from reshard.layout.tensor_spec import TensorSpec
from reshard.maps.expression import Expression
from reshard.maps.pattern import Joining, PiecePattern, filled_cells, joined, padding
from reshard.maps.rule import MAX_SIZE, Lengths, MapRule, Matched
from reshard.maps.shape import (
    ContradictionError,
    Equation,
    RuleShape,
    TensorAxes,
    ViewBox,
    names_of,
    shape_text,
    size_of,
    solved_sizes,
    view_boxes,
)
from reshard.maps.template import Template
from reshard.planning.piece import Arithmetic, Piece

T = TypeVar("T")


class CompiledRule(Struct, frozen=True):
    """A rule whose sizes are known.

    Attributes:
        shapes: of each target.
        patterns: those that fill each target.
        loops: the indices of the targets' names, and the number of places of each.
        stacked: the indices of the sources' names that are none of the targets', and the number of places of each.
        sizes: of every dimension, given ones among them.
        arithmetic: that each element passes through; None for none.
    """

    shapes: tuple[tuple[int, ...], ...]
    patterns: tuple[tuple[PiecePattern, ...], ...]
    loops: Mapping[str, int]
    stacked: Mapping[str, int]
    sizes: Mapping[str, int]
    arithmetic: Arithmetic | None = None


def compile_rule(rule: MapRule, found: Sequence[Matched], sizes: Mapping[str, int]) -> CompiledRule:
    """Solves and joins a rule's sides; ``sizes`` are given ones and those of its indices.

    Raises PlanError, naming the rule, for sizes that contradict or do not follow, and for elements that are left out.
    """
    shape = rule.shape
    if shape is None:
        raise PlanError(f"{rule.label}: a rule without a shape moves tensors as they are")
    _check_ranks(rule, shape, found)
    in_names = {index for matched in found for index in matched.indices}
    for template, side, matched in zip(rule.sources, shape.left, found, strict=False):
        _refuse_again(rule, set(matched.indices), template, side)
    solved = _solved(rule, list(_equations(shape, found)), sizes, in_names)
    on_left = {name for side in shape.left for name in names_of(side)}
    loops = _loops(rule, in_names | on_left, solved)
    _check_known(rule, shape, solved)
    taken = _with_lengths(rule, rule.crop, solved, solved, "more")
    made = _with_lengths(rule, rule.pad, taken, taken, "fewer")
    for template, side in zip(rule.targets, shape.right, strict=True):
        _refuse_again(rule, set(loops), template, side)
    on_right = {name for side in shape.right for name in names_of(side)}
    _refuse_lost(rule, in_names - on_right - loops.keys(), solved)
    stacked = {name: taken[name] for name in sorted(in_names - loops.keys())}
    joinings = [
        Joining(
            taken,
            frozenset(stacked.keys() & set(matched.indices)),
            frozenset(loops.keys() & on_left),
        )
        for matched in found
    ]
    patterns = _tried(rule, lambda: _patterns(rule, shape, (solved, made), joinings))
    return CompiledRule(
        tuple(tuple(size_of(axis, made) or 0 for axis in side) for side in shape.right),
        patterns,
        loops,
        stacked,
        solved,
        arithmetic_of(rule, solved),
    )


def _tried(rule: MapRule, make: Callable[[], T]) -> T:
    try:
        return make()
    except ValueError as error:
        raise PlanError(f"{rule.label}: {error}") from None


def _solved(
    rule: MapRule, equations: Sequence[Equation], sizes: Mapping[str, int], indices: set[str]
) -> dict[str, int]:
    """The sizes that follow; where they contradict, the error names the given ones, which may be of another model."""
    try:
        return solved_sizes(equations, sizes)
    except ContradictionError as error:
        every = dict.fromkeys(name for each in equations for name in names_of(each.axis))
        given = [name for name in every if name in sizes and name not in indices]
        remedy = ""
        if given:
            taken = ", ".join(f"{name} = {sizes[name]}" for name in given)
            remedy = f"; the map takes {taken}: give what this checkpoint has (sizes), as {', '.join(f'{name}=…' for name in given)}"
        raise PlanError(f"{rule.label}: {error}{remedy}") from None


def _check_ranks(rule: MapRule, shape: RuleShape, found: Sequence[Matched]) -> None:
    for side, matched in zip(shape.left, found, strict=False):
        rank = len(matched.spec.shape)
        if len(side) != rank:
            raise PlanError(
                f"{rule.label}: {matched.spec.name!r} has {rank} dimensions, {list(matched.spec.shape)}, but {shape_text(side)!r} "
                f"has {len(side)}"
            )


def _equations(shape: RuleShape, found: Sequence[Matched]) -> Iterator[Equation]:
    for side, matched in zip(shape.left, found, strict=False):
        spec: TensorSpec = matched.spec
        for number, (axis, size) in enumerate(zip(side, spec.shape, strict=True)):
            yield Equation(axis, size, f"axis {number} of {spec.name!r}")


def _loops(rule: MapRule, known: set[str], sizes: Mapping[str, int]) -> dict[str, int]:
    """The indices of the targets' names, with their sizes."""
    names = {name for template in rule.targets for name in template.all_names()}
    if not rule.sources:
        known = {hole.names[0] for template in rule.targets for hole in template.holes}
    loops: dict[str, int] = {}
    for name in sorted(names):
        if name in known and name in sizes:
            loops[name] = sizes[name]
        elif name not in sizes and (name not in known or not rule.sources):
            raise PlanError(
                f"{rule.label}: {name!r} in {rule.targets[0].text!r} is no index of 'from', no dimension of the left side, and no size "
                "that is given (sizes)"
            )
    return loops


def _check_known(rule: MapRule, shape: RuleShape, sizes: Mapping[str, int]) -> None:
    """Raises PlanError for a dimension without a size; the error names the one to give."""
    every = [name for side in (*shape.left, *shape.right) for name in names_of(side)]
    for name in dict.fromkeys(every):
        if name not in sizes and (rule.sources or name not in rule.pad):
            raise PlanError(
                f"{rule.label}: the size of {name!r} does not follow from the shapes; give it (sizes){_beside(name, shape, sizes)}"
            )


def _beside(name: str, shape: RuleShape, sizes: Mapping[str, int]) -> str:
    """The end of an error that names the other dimensions without a size on one axis of the left side; "" without any."""
    for side in shape.left:
        for axis in side:
            names = dict.fromkeys(names_of(axis))
            unknown = [one for one in names if one not in sizes]
            if name in names and len(unknown) > 1:
                return f", or that of {' or '.join(repr(one) for one in unknown if one != name)}, which with it makes one axis"
    return ""


def _with_lengths(
    rule: MapRule, lengths: Lengths, sizes: Mapping[str, int], known: Mapping[str, int], than: str
) -> dict[str, int]:
    """The sizes with other lengths for some dimensions; PlanError for ``than`` ("more" or "fewer") places than there are."""
    found = dict(sizes)
    for name, length in lengths.items():
        lacking = [size for size in length.names if size not in known]
        if lacking:
            raise PlanError(f"{rule.label}: the size {lacking[0]!r} is not known; give it (sizes)")
        number = _tried(rule, partial(length.whole, known))
        if not 1 <= number <= MAX_SIZE:
            raise PlanError(f"{rule.label}: {length.text} is {number}; a length is from 1 to 2^40")
        has = sizes.get(name, number)
        if (number > has) if than == "more" else (number < has):
            key = "crop" if than == "more" else "pad"
            raise PlanError(
                f"{rule.label}: {key} asks for {number} of {name!r}, of which there are {has}"
            )
        found[name] = number
    return found


def _refuse_again(rule: MapRule, indices: set[str], name: Template, side: TensorAxes) -> None:
    """Raises PlanError for an index that is a dimension too: only a diagonal would be taken or filled."""
    again = sorted(indices.intersection(names_of(side)))
    if again:
        raise PlanError(
            f"{rule.label}: {again[0]!r} is an index of {name.text!r} and a dimension of it, {shape_text(side)!r}; give one of them "
            "another name"
        )


def _refuse_lost(rule: MapRule, indices: set[str], sizes: Mapping[str, int]) -> None:
    lost = [index for index in sorted(indices) if sizes[index] != 1]
    if lost:
        raise PlanError(
            f"{rule.label}: {lost[0]!r} is an index of 'from' that neither 'to' nor the right side has, so that tensors would be left "
            "out; name it in one of them"
        )


def _patterns(
    rule: MapRule,
    shape: RuleShape,
    sizes: tuple[Mapping[str, int], Mapping[str, int]],
    joinings: Sequence[Joining],
) -> tuple[tuple[PiecePattern, ...], ...]:
    """The patterns of each target: the parts of the sources belong to those of the targets, in the order of the text."""
    left = [(n, part) for n, side in enumerate(shape.left) for part in view_boxes(side, sizes[0])]
    right = [(n, part) for n, side in enumerate(shape.right) for part in view_boxes(side, sizes[1])]
    moved: Iterator[PiecePattern] = iter(())
    filled: Iterator[PiecePattern]
    places = [(n, place) for n, part in right for place in part]
    if rule.sources:
        moved = _moving(left, right, joinings)
        taken = joinings[0].sizes
        padded = [n for n in rule.pad if sizes[1][n] != taken[n]]
        filled = chain.from_iterable(padding(place, n, padded, taken) for n, place in places)
    else:
        filled = (filled_cells(place.axes, n) for n, place in places)
    found: list[list[PiecePattern]] = [[] for _ in shape.right]
    for pattern in chain(moved, filled):
        found[pattern.target].append(pattern)
    return tuple(map(tuple, found))


_Parts = Sequence[tuple[int, Sequence[ViewBox]]]
"""The parts of one side, each with the number of its tensor."""


def _moving(left: _Parts, right: _Parts, joinings: Sequence[Joining]) -> Iterator[PiecePattern]:
    """The patterns that sources fill."""
    if len(left) != len(right):
        raise ValueError(
            f"its left side has {_counted(len(left))}, but its right side {_counted(len(right))}; each part of a source becomes a "
            "part of a target, in the order of the text"
        )
    for (source, ways), (target, places) in zip(left, right, strict=True):
        for way, place in product(ways, places):
            yield from joined(way, place, (source, target), joinings[source])


def _counted(count: int) -> str:
    return "1 part" if count == 1 else f"{count} parts"


def arithmetic_of(rule: MapRule, sizes: Mapping[str, int]) -> Arithmetic | None:
    """The arithmetic of a rule with these sizes; PlanError for a size that is not known, and for a factor of 0."""
    multiply, divide = (
        1.0 if each is None else _number(rule, each, sizes) for each in (rule.multiply, rule.divide)
    )
    if not multiply or not divide:
        raise PlanError(
            f"{rule.label}: it multiplies or divides by 0, which loses every element; write a fill"
        )
    add = 0.0 if rule.add is None else _number(rule, rule.add, sizes)
    found = Arithmetic(multiply, divide, add)
    return None if found == Arithmetic() else found


def _number(rule: MapRule, expression: Expression, sizes: Mapping[str, int]) -> float:
    lacking = [name for name in expression.names if name not in sizes]
    if lacking:
        raise PlanError(
            f"{rule.label}: the size {lacking[0]!r} in its arithmetic is not known; give it (sizes)"
        )
    return float(_tried(rule, lambda: expression.value(sizes)))


def assignments(counts: Mapping[str, int]) -> Iterator[dict[str, int]]:
    """Every choice of indices, the last name's fastest."""
    names = list(counts)
    for values in itertools.product(*(range(counts[name]) for name in names)):
        yield dict(zip(names, values, strict=True))


def fill_element(rule: MapRule, dtype: str) -> bytes:
    """The bytes of the element for places that no source fills."""
    import numpy as np

    from reshard.geometry.dtypes import numpy_dtype

    if dtype in PACKED:
        return b""
    asked = 0.0 if rule.fill is None else rule.fill
    with np.errstate(all="ignore"):
        value = np.array([asked]).astype(numpy_dtype(dtype))
    if not np.array_equal(
        value.astype(complex), [asked], equal_nan=True
    ):  # also of complex numbers
        raise PlanError(
            f"{rule.label}: {dtype} has no element {rule.fill}; fill with one that it has"
        )
    return value.tobytes()


class TargetPieces:
    """Makes the pieces of one of a rule's targets, by its patterns.

    Args:
        element: the bytes of the element for places that no source fills.

    Attributes:
        most: the most pieces that there can be, before any is made.
    """

    def __init__(
        self,
        found: Sequence[Matched],
        compiled: CompiledRule,
        patterns: Sequence[PiecePattern],
        element: bytes,
    ) -> None:
        self._found, self._arithmetic, self._element = found, compiled.arithmetic, element
        # The stacked indices of the name of each pattern's source, and the number of places of each.
        self._patterns: list[tuple[PiecePattern, dict[str, int]]] = []
        for pattern in patterns:
            indices = found[pattern.source].indices if pattern.source >= 0 else ()
            own = {index: compiled.stacked[index] for index in indices if index in compiled.stacked}
            self._patterns.append((pattern, own))
        self.most = sum(math.prod(own.values()) for _, own in self._patterns)

    def all(self, spec: TensorSpec, loops: Mapping[str, int]) -> Iterator[Piece]:
        """The pieces of a target, in order; ``loops`` are the indices in its name."""
        for pattern, places in self._places:
            if not pattern.is_for(loops):
                continue
            if pattern.source < 0:
                yield self._filled(spec, pattern, places[0][1])
                continue
            matched, source, target = (
                self._found[pattern.source],
                pattern.of_source,
                pattern.of_target,
            )
            box = source.at(loops)
            for values, place in places:
                at = {**loops, **values} if values else loops
                yield Piece(
                    matched.names[tuple([at[index] for index in matched.indices])],
                    box,
                    spec.name,
                    place,
                    pattern.axis_order,
                    matched.spec.dtype,
                    spec.dtype,
                    source_view=source.view,
                    target_view=target.view,
                    arithmetic=self._arithmetic,
                )

    @cached_property
    def _places(self) -> list[tuple[PiecePattern, list[tuple[dict[str, int], Box]]]]:
        """Each pattern with the numbers of its stacked indices, and the target's box for them: the same in every target."""
        return [
            (pattern, [(at, pattern.of_target.at(at)) for at in assignments(own) if pattern.is_for(at)])
            for pattern, own in self._patterns
        ]  # fmt: skip

    def _filled(self, spec: TensorSpec, pattern: PiecePattern, place: Box) -> Piece:
        full, view = Box.full(place.shape), pattern.of_target.view
        return Piece(
            "", full, spec.name, place, pattern.axis_order, spec.dtype, spec.dtype,
            source_view=view, target_view=view, fill=self._element,
        )  # fmt: skip
