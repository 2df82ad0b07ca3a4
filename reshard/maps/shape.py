"""RuleShape: the words of a rule for its dimensions, their sizes, and the boxes of views that brackets stand for.

::

    shape := side (',' side)* '->' side (',' side)*
    side  := dim*
    dim   := name | '1' | '(' dim+ ')' | '[' dim+ ('|' dim+)* ']'
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator, Mapping, Sequence

from msgspec import Struct

MAX_CHARACTERS = 4000
MAX_DEPTH = 8

_WORD = re.compile(r"\s*(->|[A-Za-z_]\w*|\d+|[()\[\]|,])", re.ASCII)


class Parts(Struct, frozen=True):
    """``[a | b]``: parts that lie one behind the other."""

    parts: tuple[tuple[str | Parts, ...], ...]


AxisItem = str | Parts
AxisItems = tuple[AxisItem, ...]
"""Items that are merged to one axis, slowest first; none for an axis of one element."""

TensorAxes = tuple[AxisItems, ...]
"""The axes of one tensor."""


class RuleShape(Struct, frozen=True):
    """Both sides of a rule.

    Attributes:
        left: of each source; right: of each target.
    """

    left: tuple[TensorAxes, ...]
    right: tuple[TensorAxes, ...]

    @property
    def turned(self) -> RuleShape:
        """The shape read from right to left."""
        return RuleShape(self.right, self.left)


def names_of(item: AxisItem | AxisItems | TensorAxes) -> Iterator[str]:
    """The names in a part of a shape, in order."""
    if isinstance(item, str):
        yield item
    else:
        for part in item.parts if isinstance(item, Parts) else item:
            yield from names_of(part)


def shape_text(side: TensorAxes) -> str:
    """A side as it is written."""
    return " ".join(_axis_text(axis) for axis in side)


def _axis_text(axis: AxisItems) -> str:
    words = [_item_text(item) for item in axis]
    if not words:
        return "1"
    return words[0] if len(words) == 1 else f"({' '.join(words)})"


def _item_text(item: AxisItem) -> str:
    if isinstance(item, str):
        return item
    return f"[{' | '.join(' '.join(map(_item_text, part)) or '1' for part in item.parts)}]"


def parse_shape(text: str) -> RuleShape:
    """The shape in a text; ValueError saying what is wrong with it.

    >>> shape = parse_shape("e l h (p two) -> (h two p) e")
    >>> [shape_text(side) for side in shape.right]
    ['(h two p) e']
    """
    if len(text) > MAX_CHARACTERS:
        raise ValueError(f"a shape of {len(text)} characters; write at most {MAX_CHARACTERS}")
    words = _words(text)
    if words.count("->") != 1:
        raise ValueError(f"{text!r} must have one arrow, such as 'e v -> v e'")
    arrow = words.index("->")
    return RuleShape(tuple(_sides(words[:arrow], text)), tuple(_sides(words[arrow + 1 :], text)))


def _words(text: str) -> list[str]:
    found, end = [], 0
    while text[end:].strip():
        word = _WORD.match(text, end)
        if word is None:
            raise ValueError(
                f"{text[end:].strip()[0]!r} in {text!r} is no word of a shape; write names, 1, ( ) and [ | ]"
            )
        found.append(word[1])
        end = word.end()
    return found


def _sides(words: list[str], text: str) -> Iterator[TensorAxes]:
    reading = _Reading(words, text)
    while True:
        side = reading.side()
        _refuse_twice(side, text)
        yield side
        if not reading.word:
            return
        reading.expect(",")


def _refuse_twice(side: TensorAxes, text: str) -> None:
    """Raises ValueError for a name that is twice on a side; only parts that lie one behind the other may each have it."""
    seen: set[str] = set()
    for item in (item for axis in side for item in axis):
        here = set(_names_once(item, text))
        if seen & here:
            raise ValueError(
                f"{text!r} has {min(seen & here)!r} twice on one side; every dimension has a name of its own"
            )
        seen |= here


def _names_once(item: AxisItem, text: str) -> set[str]:
    if isinstance(item, str):
        return {item}
    found: set[str] = set()
    for part in item.parts:
        of_part: set[str] = set()
        for inner in part:
            names = _names_once(inner, text)
            if of_part & names:
                raise ValueError(
                    f"{text!r} has {min(of_part & names)!r} twice on one side; every dimension has a name of its own"
                )
            of_part |= names
        found |= of_part
    return found


class _Reading:
    """One half of a shape that is read a word at a time."""

    def __init__(self, words: list[str], text: str) -> None:
        self._words = words
        self._text = text
        self._at = 0

    @property
    def word(self) -> str:
        return self._words[self._at] if self._at < len(self._words) else ""

    def expect(self, word: str) -> None:
        if self.word != word:
            found = repr(self.word) if self.word else "its end"
            raise ValueError(f"{self._text!r} needs {word!r} where it has {found}")
        self._at += 1

    def side(self) -> TensorAxes:
        axes: list[AxisItems] = []
        while self.word not in ("", ","):
            axes.append(tuple(self._dim(0)))
        return tuple(axes)

    def _dim(self, depth: int) -> Iterator[AxisItem]:
        """The items of a dimension; parentheses within others add nothing."""
        word = self.word
        if depth > MAX_DEPTH:
            raise ValueError(
                f"brackets in {self._text!r} are nested deeper than {MAX_DEPTH} levels"
            )
        if word == "(":
            self._at += 1
            yield from self._until(depth, ")")
            self.expect(")")
        elif word == "[":
            self._at += 1
            parts = [tuple(self._until(depth, "|", "]"))]
            while self.word == "|":
                self._at += 1
                parts.append(tuple(self._until(depth, "|", "]")))
            self.expect("]")
            yield Parts(tuple(parts))
        elif word == "1":
            self._at += 1
        elif word.isdigit():
            raise ValueError(
                f"{word} in {self._text!r} has no name; name the dimension, and give its size (sizes)"
            )
        elif word.isidentifier():
            self._at += 1
            yield word
        else:
            found = repr(word) if word else "its end"
            raise ValueError(f"{self._text!r} needs a dimension where it has {found}")

    def _until(self, depth: int, *ends: str) -> Iterator[AxisItem]:
        yield from self._dim(depth + 1)
        while self.word not in ends:
            yield from self._dim(depth + 1)


class Equation(Struct, frozen=True):
    """An axis of a tensor and its length.

    Attributes:
        where: such as ``"axis 0 of 'q'"``.
    """

    axis: AxisItems
    size: int
    where: str


class ContradictionError(ValueError):
    """No sizes fit the equations."""


def solved_sizes(equations: Sequence[Equation], given: Mapping[str, int]) -> dict[str, int]:
    """Every size that follows; names that do not are left out. Raises ContradictionError where two do not agree."""
    sizes = dict(given)
    while True:
        before = len(sizes)
        for equation in equations:
            _solve(equation.axis, equation.size, equation, sizes)
        if len(sizes) == before:
            break
    for equation in equations:
        found = size_of(equation.axis, sizes)
        if found is not None and found != equation.size:
            raise ContradictionError(
                f"{equation.where} is {equation.size}, but {_sum_text(equation.axis, sizes)} is {found}"
            )
    return sizes


def size_of(axis: AxisItems, sizes: Mapping[str, int]) -> int | None:
    """The length of an axis; None where a size is not known."""
    found = [_item_size(item, sizes) for item in axis]
    return None if None in found else math.prod(n for n in found if n is not None)


def _item_size(item: AxisItem, sizes: Mapping[str, int]) -> int | None:
    if isinstance(item, str):
        return sizes.get(item)
    found = [size_of(part, sizes) for part in item.parts]
    return None if None in found else sum(n for n in found if n is not None)


def _solve(axis: AxisItems, size: int, equation: Equation, sizes: dict[str, int]) -> None:
    """Finds the one item of an axis whose size is not known."""
    unknown = [item for item in axis if _item_size(item, sizes) is None]
    if len(unknown) != 1 or _has_again(axis, unknown[0]):
        return
    known = math.prod(n for item in axis if (n := _item_size(item, sizes)) is not None)
    if not known:
        return
    if size % known:
        raise ContradictionError(
            f"{equation.where} is {equation.size}, which is no multiple of {_sum_text(axis, sizes)}"
        )
    item, rest = unknown[0], size // known
    if isinstance(item, str):
        sizes[item] = rest
    else:
        _solve_parts(item, rest, equation, sizes)


def _has_again(axis: AxisItems, item: AxisItem) -> bool:
    """True if a name of the unknown item is in another item of the axis, too."""
    others = [name for other in axis if other is not item for name in names_of(other)]
    return any(name in others for name in names_of(item))


def _solve_parts(item: Parts, size: int, equation: Equation, sizes: dict[str, int]) -> None:
    unknown = [part for part in item.parts if size_of(part, sizes) is None]
    known = sum(n for part in item.parts if (n := size_of(part, sizes)) is not None)
    if len(unknown) > 1 and len(set(unknown)) == 1:  # equal parts: [d | d]
        each = (size - known) // len(unknown)
        if size >= known and each * len(unknown) == size - known:
            _solve(unknown[0], each, equation, sizes)
        return
    if len(unknown) != 1:
        _solve_common(unknown, size - known, equation, sizes)
        return
    if size < known:
        raise ContradictionError(
            f"{equation.where} is {equation.size}, but its parts alone are {known}"
        )
    _solve(unknown[0], size - known, equation, sizes)


def _solve_common(
    parts: Sequence[AxisItems], size: int, equation: Equation, sizes: dict[str, int]
) -> None:
    """Finds a name that is the only unknown one of every part: ``[r d | d | d]`` gives d where r is known."""
    lacking = {name for part in parts for name in names_of(part) if name not in sizes}
    if len(lacking) != 1:
        return
    (name,) = lacking
    if any(list(names_of(part)).count(name) != 1 for part in parts):
        return
    each = sum(size_of(part, {**sizes, name: 1}) or 0 for part in parts)
    if each <= 0 or size % each:
        raise ContradictionError(
            f"{equation.where} is {equation.size}, which {_parts_text(parts)} cannot fill with a whole {name}"
        )
    sizes[name] = size // each


def _parts_text(parts: Sequence[AxisItems]) -> str:
    return f"[{' | '.join(shape_text((part,)) for part in parts)}]"


def _sum_text(axis: AxisItems, sizes: Mapping[str, int]) -> str:
    named = {name: sizes[name] for name in names_of(axis) if name in sizes}
    values = ", ".join(f"{name} = {n}" for name, n in named.items())
    return f"{shape_text((axis,))} with {values}" if values else shape_text((axis,))


Choices = tuple[int, ...]
"""The number of the part that was chosen at each ``[ | ]``, in the order of the text."""

MAX_VIEW_BOXES = 4096
"""Most boxes of one side."""


class Cell(Struct, frozen=True):
    """One dimension of the view, and the strand's share of it.

    Attributes:
        name: of the dimension; None where it is one place of another.
    """

    size: int
    start: int
    stop: int
    name: str | None = None


class ViewBox(Struct, frozen=True):
    """A box of a view: the cells of each axis.

    Attributes:
        fixed: places of dimensions that the view cannot split, so that each has a box of its own.
    """

    axes: tuple[tuple[Cell, ...], ...]
    fixed: Mapping[str, int]


def view_boxes(side: TensorAxes, sizes: Mapping[str, int]) -> list[list[ViewBox]]:
    """The boxes of each choice, in the order of the text; ValueError for more than MAX_VIEW_BOXES.

    >>> [[len(of.axes[0]) for of in each] for each in view_boxes((("g", Parts((("r", "d"), ("d",)))),), {"g": 2, "r": 3, "d": 4})]
    [[3], [2]]
    """
    found: dict[Choices, list[ViewBox]] = {}
    ways = [list(itertools.islice(_axis_ways(axis, sizes), MAX_VIEW_BOXES + 1)) for axis in side]
    if math.prod(map(len, ways)) > MAX_VIEW_BOXES:
        raise ValueError(f"its brackets stand for more than {MAX_VIEW_BOXES:,} boxes of one tensor")
    for combined in itertools.product(*ways):
        choices = tuple(itertools.chain.from_iterable(way.choices for way in combined))
        fixed: dict[str, int] = {}
        for way in combined:
            fixed |= way.fixed
        part = found.setdefault(choices, [])
        if all(place < sizes[name] for name, place in fixed.items()):  # else the part is empty
            part.append(ViewBox(tuple(way.cells for way in combined), fixed))
    return [found[choices] for choices in sorted(found)]


class _Way(Struct, frozen=True):
    cells: tuple[Cell, ...] = ()
    choices: Choices = ()
    fixed: Mapping[str, int] = {}

    def after(self, *cells: Cell, choices: Choices = (), fixed: Mapping[str, int] = {}) -> _Way:
        """The way behind these cells, choices and places."""
        return _Way((*cells, *self.cells), (*choices, *self.choices), {**fixed, **self.fixed})


def _axis_ways(axis: AxisItems, sizes: Mapping[str, int]) -> Iterator[_Way]:
    whole = size_of(axis, sizes)
    yield from _ways(axis, whole or 0, 0, sizes)


def _ways(
    items: Sequence[AxisItem], whole: int, offset: int, sizes: Mapping[str, int]
) -> Iterator[_Way]:
    """The ways through items that lie from ``offset`` on in a dimension of ``whole`` places."""
    if not items:
        yield _Way((Cell(whole, offset, offset + 1),))
        return
    first, rest = items[0], items[1:]
    behind = size_of(tuple(rest), sizes) or 0
    if isinstance(first, Parts):
        yield from _ways_of_parts(first, rest, whole, offset, sizes)
    elif not rest:
        yield _Way((Cell(whole, offset, offset + sizes[first], first),))
    elif not whole or (behind and not whole % behind and not offset % behind):
        start = offset // behind if behind else 0
        cell = Cell(whole // behind if behind else sizes[first], start, start + sizes[first], first)
        for way in _ways(rest, behind, 0, sizes):
            yield way.after(cell)
    else:  # the view cannot split there: a box for each place
        for place in range(max(1, sizes[first]) if behind else 1):
            for way in _ways(rest, whole, offset + place * behind, sizes):
                yield way.after(fixed={first: place})


def _ways_of_parts(
    item: Parts, rest: Sequence[AxisItem], whole: int, offset: int, sizes: Mapping[str, int]
) -> Iterator[_Way]:
    behind = size_of(tuple(rest), sizes) or 0
    for number, part in enumerate(item.parts):
        for way in _ways((*part, *rest), whole, offset, sizes):
            yield way.after(choices=(number,))
        offset += (size_of(part, sizes) or 0) * behind
