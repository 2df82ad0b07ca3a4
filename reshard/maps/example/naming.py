"""Naming: names for the sizes of rules that several examples have in common, words for factors, and questions that they leave open."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

from reshard.maps.example.rule_text import IN_NAMES, RuleText
from reshard.maps.shape import (
    Equation,
    Parts,
    RuleShape,
    TensorAxes,
    parse_shape,
    size_of,
    solved_sizes,
)

_Sizes = tuple[int, ...]
"""A size in each example."""

_MARK, _NUMBER = re.compile(r"<(\d+)>"), re.compile(r"#(\d+)#")
_WORDS = {2: "two", 3: "three", 4: "four", 8: "eight"}
_LETTERS = "abcdefghijklmnopqrstuvwxyz"


class Naming:
    """The names of all sizes of a map.

    Attributes:
        asked: sizes that neither shapes nor names tell, with their values in the examples.
        constants: those of them that are the same in several examples.
        notes: points that one example leaves open.
    """

    def __init__(self, hints: Sequence[Mapping[str, int]]) -> None:
        self._count = len(hints)
        self.asked: dict[str, _Sizes] = {}
        self.constants: dict[str, int] = {}
        self.notes: dict[str, None] = {}
        every = [name for name in hints[0] if all(name in each for each in hints)]
        self._hints = {name: tuple(each[name] for each in hints) for name in every}
        self._by_values: dict[_Sizes, str] = {}
        for name, values in self._hints.items():
            self._by_values.setdefault(values, name)
        self._letters = iter(
            [*(c for c in _LETTERS if c not in every), *(f"n{i}" for i in range(10_000))]
        )

    def _open(self, note: str) -> None:
        self.notes[note] = None

    def rule(self, group: Sequence[RuleText]) -> dict[str, Any]:
        """A rule, from its spellings in all examples. ValueError where its factors have no law."""
        first = group[0]
        sizes = list(zip(*(one.sizes for one in group), strict=True))
        names = self._all_names(first, sizes)
        numbers = list(zip(*(one.numbers for one in group), strict=True))
        rule: dict[str, Any] = {}
        self._templates(rule, first, names, numbers)
        rule["shape"] = _named(first.shape, names)
        for key, lengths in (("pad", [o.pads for o in group]), ("crop", [o.crops for o in group])):
            if lengths[0]:
                rule[key] = self._lengths(key, lengths, names)
        known = dict(zip(names, sizes, strict=True))
        self._arithmetic(rule, group, parse_shape(rule["shape"]), known)
        rule |= _fill_and_cast(first)
        self._tell_rounding(rule, group)
        return rule

    def _templates(
        self,
        rule: dict[str, Any],
        first: RuleText,
        names: Sequence[str],
        numbers: Sequence[_Sizes],
    ) -> None:
        """The names of sources and targets; one alone is no list."""
        for key, texts in (("from", first.sources), ("to", first.targets)):
            templates = [self._template(text, names, numbers) for text in texts]
            if templates:
                rule[key] = templates if len(templates) > 1 else templates[0]

    def _all_names(self, first: RuleText, sizes: Sequence[_Sizes]) -> list[str]:
        """The names of a rule's sizes, those that are given with the map renamed."""
        names = self._names(first, sizes)
        known = dict(zip(names, sizes, strict=True))
        told = {names[int(mark)] for text in first.sources for mark in _MARK.findall(text)}
        padded = {names[int(length.mark.strip("<>"))] for length in first.pads}
        shape = parse_shape(_named(first.shape, names))
        asked = self._undetermined(shape, known, told, padded, is_whole=bool(first.sources))
        taken = {*names}
        return [self._asked_size(n, known[n], taken - {n}) if n in asked else n for n in names]

    def _tell_rounding(self, rule: Mapping[str, Any], group: Sequence[RuleText]) -> None:
        off = sum(one.off for one in group)
        if off:
            first = rule["to"] if isinstance(rule["to"], str) else rule["to"][0]
            self._open(
                f"{first}: the script rounds {off:,} elements otherwise, by up to two units in the last place"
            )

    def _names(self, first: RuleText, sizes: Sequence[_Sizes]) -> list[str]:
        names: list[str] = []
        for values, within in zip(sizes, first.within, strict=True):
            name = self._by_values.get(values)
            alike = [hint for hint, v in self._hints.items() if v == values]
            if len(alike) > 1:
                self._open(
                    f"{alike[0]} and {alike[1]} are both {_text(values)}: choose sizes that differ"
                )
            if name is None:
                name = self._by_values[values] = next(self._letters)
            # An index that is in names only is no dimension: with the name of one it would mean that tensors are stacked.
            taken = {
                n
                for n, places in zip(names, first.within, strict=False)
                if places & within or IN_NAMES in places | within
            }
            base, number = name, 2
            while name in taken:
                name, number = f"{base}{number}", number + 1
            names.append(name)
        return names

    def _template(self, text: str, names: Sequence[str], numbers: Sequence[_Sizes]) -> str:
        text = _named(text, names)
        text = _NUMBER.sub(lambda found: self._number(numbers[int(found[1])]), text)
        text = re.sub(r"(?<=[{+])1\*", "", text)
        return re.sub(r"\+0(?=\})", "", text)

    def _number(self, values: _Sizes) -> str:
        """A number in a name: itself where all examples agree, else a size to be given."""
        if len(set(values)) == 1 and (values[0] in (0, 1) or self._count > 1):
            return str(values[0])
        if len(set(values)) == 1:
            self._open(
                f"{values[0]} in a name is taken as it is; a second example with other sizes tells whether it is one"
            )
            return str(values[0])
        return self._asked_as("first", values)

    def _asked_as(self, word: str, values: _Sizes, taken: Collection[str] = ()) -> str:
        """The name of a size that is given with the map; ``taken`` are those of other dimensions of the rule."""
        known = [n for n, v in self.asked.items() if v == values and n.startswith(word)]
        hints = [n for n, v in self._hints.items() if v == values]
        free = [n for n in (*known, *hints) if n not in taken]
        name = free[0] if free else f"{word}_{len(self.asked)}"
        self.asked[name] = values
        return name

    def _lengths(self, key: str, lengths: Sequence[Any], names: Sequence[str]) -> dict[str, str]:
        found = {}
        for number, length in enumerate(lengths[0]):
            values = tuple(each[number].length for each in lengths)
            found[names[int(length.mark.strip("<>"))]] = self._asked_as(key, values)
        return found

    def _arithmetic(
        self,
        rule: dict[str, Any],
        group: Sequence[RuleText],
        shape: RuleShape,
        known: Mapping[str, _Sizes],
    ) -> None:
        divides = group[0].fit.divides
        factors = [1 / one.fit.factor if divides else one.fit.factor for one in group]
        if any(abs(f - 1) > 1e-12 for f in factors):
            rule["divide" if divides else "multiply"] = self._law(rule, factors, shape, known)
        if group[0].fit.addend:
            rule["add"] = _shortest(group[0].fit.addend)

    def _law(
        self,
        rule: Mapping[str, Any],
        factors: Sequence[float],
        shape: RuleShape,
        known: Mapping[str, _Sizes],
    ) -> str:
        """The factors of all examples in words. ValueError where no sizes explain them."""
        words = laws(factors, list(_groups(shape)), known, self._hints)
        if not words:
            raise ValueError(f"its factors are {factors} in the examples, which no sizes explain")
        if len(words) > 1:
            self._open(f"{rule['to']}: its factor {factors[0]:.6g} may be {' or '.join(words[:4])}")
        for name in re.findall(r"[A-Za-z_]\w*+(?!\()", words[0]):
            if name not in known:
                self.asked[name] = self._hints[name]
        return words[0]

    def _undetermined(
        self,
        shape: RuleShape,
        known: Mapping[str, _Sizes],
        told: set[str],
        padded: set[str],
        *,
        is_whole: bool,
    ) -> set[str]:
        """The fewest sizes that neither shapes nor names of a source tell; constants first."""
        given = {name: known[name][0] for name in told}
        equations = _equations(shape, known) if is_whole else []
        asked: set[str] = set()
        while True:
            solved = solved_sizes(equations, given)
            left = [
                name
                for name in known
                if name not in solved and (not is_whole or name not in padded)
            ]
            if not left:
                return asked
            name = min(left, key=lambda n: (len(set(known[n])) > 1, known[n], n))
            given[name] = known[name][0]
            asked.add(name)

    def _asked_size(self, name: str, values: _Sizes, taken: Collection[str]) -> str:
        """The name of a size that is given with the map. It is no other dimension's: those may be longer elsewhere."""
        if self._count > 1 and len(set(values)) == 1 and name not in self._hints:
            word = _WORDS.get(values[0], f"size_{values[0]}")
            self.constants[word] = values[0]
            return word
        if name in self._hints:
            self.asked[name] = values
            return name
        return self._asked_as("size", values, taken)


def _shortest(number: float) -> float:
    """A whole number without a point."""
    return int(number) if number == int(number) else number


def _named(text: str, names: Sequence[str]) -> str:
    return _MARK.sub(lambda found: names[int(found[1])], text)


def _equations(shape: RuleShape, known: Mapping[str, _Sizes]) -> list[Equation]:
    """An equation for each axis of each source, with the sizes of the first example."""
    sizes = {name: values[0] for name, values in known.items()}
    return [
        Equation(axis, size_of(axis, sizes) or 0, "the example")
        for side in shape.left
        for axis in side
    ]


def _groups(shape: RuleShape) -> Iterator[list[str]]:
    """Names that stand side by side."""
    for side in (*shape.left, *shape.right):
        yield from _groups_of(side)


def _groups_of(side: TensorAxes) -> Iterator[list[str]]:
    for axis in side:
        names: list[str] = []
        for item in axis:
            if isinstance(item, Parts):
                yield from _groups_of(item.parts)
            else:
                names.append(item)
        if names:
            yield names


def _text(values: _Sizes) -> str:
    return " and ".join(map(str, values))


def _rounded(value: float) -> float:
    import ml_dtypes

    return float(ml_dtypes.bfloat16(value))


_FORMS: Sequence[tuple[str, Callable[[float], float]]] = (
    ("{}", lambda p: p),
    ("1/({})", lambda p: 1 / p),
    ("sqrt({})", math.sqrt),
    ("1/sqrt({})", lambda p: 1 / math.sqrt(p)),
    # Gemma 3 scales its embedding by a root that was rounded first.
    ("bfloat16(sqrt({}))", lambda p: _rounded(math.sqrt(p))),
    ("1/bfloat16(sqrt({}))", lambda p: 1 / _rounded(math.sqrt(p))),
)

_NEAR = 1e-3
"""Largest relative error of a factor that was read off rounded elements."""


def laws(
    factors: Sequence[float],
    groups: Sequence[Sequence[str]],
    sizes: Mapping[str, Sequence[int]],
    hints: Mapping[str, Sequence[int]],
) -> list[str]:
    """The words for a factor, the likeliest first; none where its examples have nothing in common.

    Args:
        factors: one in each example.
        groups: names of dimensions that stand side by side in the shape.
        sizes: of them in each example; ``hints``: other sizes that were named.
    """
    is_plain = all(abs(f - factors[0]) <= _NEAR * abs(factors[0]) for f in factors)
    plain = [_number(factors[0])] if is_plain else []
    found = list(_found(_neighbours(groups), sizes, factors))
    found = found or list(_found([(name,) for name in hints], hints, factors))
    is_power = is_plain and math.frexp(abs(factors[0]))[0] == 0.5
    return [*plain, *found] if is_power else [*found, *plain]


def _neighbours(groups: Sequence[Sequence[str]]) -> list[tuple[str, ...]]:
    runs = {
        tuple(sorted(group[a:b]))
        for group in groups
        for a in range(len(group))
        for b in range(a + 1, len(group) + 1)
    }
    return sorted(runs, key=lambda run: (len(run), run))


def _found(
    runs: Sequence[tuple[str, ...]], sizes: Mapping[str, Sequence[int]], factors: Sequence[float]
) -> Iterator[str]:
    """The laws that are near the factors, the nearest first."""
    found: list[tuple[float, str]] = []
    seen: set[tuple[tuple[str, ...], float]] = set()
    for run in runs:
        products = [math.prod(each) for each in zip(*(sizes[name] for name in run), strict=True)]
        for words, form in _FORMS:
            pairs = zip(map(form, products), factors, strict=True)
            apart = max(abs(value - f) / abs(f) for value, f in pairs)
            if apart <= _NEAR and (run, form(products[0])) not in seen:
                seen.add((run, form(products[0])))
                found.append((round(apart, 9), words.format("*".join(run))))
    yield from (words for _, words in sorted(found, key=lambda one: one[0]))


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else repr(value)


def _fill_and_cast(first: RuleText) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if first.fill is not None and (first.fill or not first.sources):
        found["fill"] = _shortest(first.fill)
    if first.cast is not None:
        found["cast"] = first.cast
    return found
