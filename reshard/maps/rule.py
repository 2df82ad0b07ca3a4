"""MapRule and MapFile: the content of a map, as ``read_map`` reads it, and the tensors that the names of a rule stand for."""

from __future__ import annotations

import difflib
import itertools
import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from operator import itemgetter

from msgspec import Struct, field

from reshard.errors import PlanError
from reshard.layout.changes import Changes
from reshard.layout.layout_file import LayoutFile
from reshard.layout.tensor_spec import TensorSpec
from reshard.maps.expression import Expression
from reshard.maps.shape import RuleShape, names_of
from reshard.maps.template import Template, numbers_of, skeleton_of

MAX_SIZE = 1 << 40
"""Longest dimension."""

Lengths = Mapping[str, Expression]
"""The length of a dimension, by its name: a number, or arithmetic with sizes."""


class Refusal(Struct, frozen=True):
    """A pattern of source tensors that the map cannot convert.

    Attributes:
        reason: the reason, for the error.
        label: ``refuse[0] (llama.yaml:12)``, for messages.
    """

    match: str
    reason: str
    label: str = "refuse"


class MapRule(Struct, frozen=True):
    """A rule by which source tensors become target tensors.

    Attributes:
        sources: the names of the sources; none where an element fills the targets.
        targets: of the targets; none for ``same_as`` of a source.
        shape: the relation of their dimensions; None where they stay as they are.
        multiply, divide, add: arithmetic that each element passes through, in this order.
        pad: lengths of dimensions on the right side; elements that no source fills are ``fill``.
        crop: lengths of dimensions that are taken.
        fill: the number for elements that no source fills, or, read backwards, that a crop left out; None for 0, and where there are none.
        cast: dtype of the targets; None for the sources'.
        same_as: the tensor that a source must equal, or that a target copies.
        label: ``map[3] (llama.yaml:12)``, for messages.
    """

    sources: tuple[Template, ...] = ()
    targets: tuple[Template, ...] = ()
    shape: RuleShape | None = None
    multiply: Expression | None = None
    divide: Expression | None = None
    add: Expression | None = None
    pad: Lengths = field(default_factory=dict)
    crop: Lengths = field(default_factory=dict)
    fill: float | None = None
    cast: str | None = None
    same_as: Template | None = None
    label: str = "rule"

    def names(self) -> Iterator[str]:
        """Every name of a size, a dimension or an index in it; some more than once."""
        templates = (*self.sources, *self.targets, *((self.same_as,) if self.same_as else ()))
        for template in templates:
            yield from template.all_names()
        for side in (*self.shape.left, *self.shape.right) if self.shape is not None else ():
            yield from names_of(side)
        for lengths in (self.pad, self.crop):
            yield from lengths
        arithmetic = (self.multiply, self.divide, self.add)
        for expression in (*arithmetic, *self.pad.values(), *self.crop.values()):
            yield from () if expression is None else expression.names


class MapFile(Struct, frozen=True):
    """The rules of a map.

    Attributes:
        sizes: that no shape tells.
        mesh_sizes: names of sizes that are those of the target mesh's axes of the same name.
        refusals: source tensors that it cannot convert, and the reasons.
        changes: the map's own rules: select and drop for sources, rename and cast for targets.
        plain: the same as plain data, as ``parse_map`` reads it.
        about: its purpose, in words.
        where: its name in messages.
        layout: the layout of the targets, if the file has one.
    """

    rules: tuple[MapRule, ...]
    sizes: Mapping[str, int] = field(default_factory=dict)
    mesh_sizes: tuple[str, ...] = ()
    refusals: tuple[Refusal, ...] = ()
    changes: Changes = field(default_factory=Changes)
    plain: Mapping[str, object] = field(default_factory=dict)
    about: str = ""
    where: str = "map"
    layout: LayoutFile | None = None


MAX_SHOWN = 5


class NameTable:
    """Names by their skeleton and by each of their numbers, so that a rule looks only at names that it may match."""

    def __init__(self, names: Iterable[str] = ()) -> None:
        self._by_skeleton: dict[str, list[str]] = defaultdict(list)
        self._by_number: dict[str, dict[tuple[int, str], list[str]]] = {}
        for name in names:
            self.add(name)

    def add(self, name: str) -> None:
        """Adds one more name."""
        skeleton = skeleton_of(name)
        self._by_skeleton[skeleton].append(name)
        if skeleton in self._by_number:
            _add_by_number(self._by_number[skeleton], name)

    def matching(self, template: Template, sizes: Mapping[str, int]) -> dict[tuple[int, ...], str]:
        """The names that match a template, by the numbers of its indices; ValueError where these do not follow from a name."""
        names = self._candidates(template)
        numbers = zip(map(template.matcher(sizes), names), names, strict=True)
        return {values: name for values, name in numbers if values is not None}

    def _candidates(self, template: Template) -> Sequence[str]:
        """The fewest names among which all matches are: those that have one of the template's own numbers."""
        skeleton, numbers = template.skeleton, template.numbers
        names: Sequence[str] = self._by_skeleton.get(skeleton, ())
        if len(names) <= 1 or not any(numbers):
            return names
        if skeleton not in self._by_number:
            by_number = self._by_number[skeleton] = defaultdict(list)
            for name in names:
                _add_by_number(by_number, name)
        known = self._by_number[skeleton]
        own = [(place, number) for place, number in enumerate(numbers) if number is not None]
        return min((known.get(each, ()) for each in own), key=len)

    def nearest(self, text: str) -> str:
        """A name that is like a text, for a message; "" where none is."""
        near = difflib.get_close_matches(skeleton_of(text), self._by_skeleton, n=1, cutoff=0.5)
        return self._by_skeleton[near[0]][0] if near else ""


def _add_by_number(by_number: dict[tuple[int, str], list[str]], name: str) -> None:
    for each in enumerate(numbers_of(name)):
        by_number[each].append(name)


class Matched(Struct, frozen=True):
    """The sources of one template.

    Attributes:
        indices: the names of its indices.
        names: the source for each of their values.
        spec: the spec of all of them, but for the name.
    """

    indices: tuple[str, ...]
    names: Mapping[tuple[int, ...], str]
    spec: TensorSpec


def match_sources(
    rule: MapRule, table: NameTable, specs: Mapping[str, TensorSpec], sizes: Mapping[str, int]
) -> list[Matched]:
    """The sources that each name of a rule stands for; PlanError where there are none, or where they differ."""
    return [_match(rule, template, table, specs, sizes) for template in rule.sources]


def _match(
    rule: MapRule,
    template: Template,
    table: NameTable,
    specs: Mapping[str, TensorSpec],
    sizes: Mapping[str, int],
) -> Matched:
    try:
        indices, names = template.indices(sizes), table.matching(template, sizes)
    except ValueError as error:
        raise PlanError(f"{rule.label}: {error}") from None
    if not names:
        raise PlanError(f"{rule.label}: {_no_match(template, table, len(specs))}")
    first = specs[next(iter(names.values()))]
    shape, dtype = first.shape, first.dtype
    for name in names.values():
        spec = specs[name]
        if spec.shape != shape or spec.dtype != dtype:
            raise PlanError(
                f"{rule.label}: {template.text!r} stands for {first.name!r}, {_kind(first)}, and {name!r}, {_kind(spec)}; a rule is "
                "for tensors of one shape and dtype, so write a rule for each"
            )
    return Matched(indices, names, first)


def _kind(spec: TensorSpec) -> str:
    return f"{spec.dtype} {list(spec.shape)}"


def _no_match(template: Template, table: NameTable, count: int) -> str:
    near = table.nearest(template.text)
    hint = f"; the nearest is {near!r}" if near else ""
    return (
        f"{template.text!r} matches none of the {count:,} tensors{hint}; correct or remove the rule"
    )


def index_sizes(rule: MapRule, found: Sequence[Matched]) -> dict[str, int]:
    """The number of places of each index of a rule's sources.

    Raises PlanError where numbers are left out, or a source is missing for some of them.
    """
    counts: dict[str, int] = {}
    for matched in found:
        for at, index in enumerate(matched.indices):
            most = max(map(itemgetter(at), matched.names)) + 1
            counts[index] = max(most, counts.get(index, 0))
    for template, matched in zip(rule.sources, found, strict=True):
        expected = math.prod(counts[index] for index in matched.indices)
        if len(matched.names) != expected:
            raise PlanError(f"{rule.label}: {_gap(template, matched, counts, expected)}")
    return counts


def _gap(template: Template, matched: Matched, counts: Mapping[str, int], expected: int) -> str:
    """The first number that is left out, in words. Only as many are looked at as there are names."""
    ways = itertools.product(*(range(counts[index]) for index in matched.indices))
    lacking = next(values for values in ways if values not in matched.names)
    where = ", ".join(f"{i} = {n}" for i, n in zip(matched.indices, lacking, strict=True))
    index = matched.indices[0]
    return (
        f"{template.text!r} stands for {len(matched.names):,} tensors, but none for {where} of {expected:,}; numbers begin at 0 and "
        f"leave none out: where they begin later, write {{{index}+first}} and give the size 'first'"
    )


def dimension_sizes(
    count: Mapping[str, int], given: Mapping[str, int], rule: MapRule
) -> dict[str, int]:
    """Given sizes and those of indices; PlanError where they contradict."""
    for index, number in count.items():
        if given.get(index, number) != number:
            raise PlanError(
                f"{rule.label}: the size of {index!r} is given as {given[index]}, but the names have {number} of it"
            )
    return {**given, **count}
