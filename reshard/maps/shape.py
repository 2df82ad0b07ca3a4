"""RuleShape: the words of a rule that say how dimensions are merged, split, concatenated and turned.

::

    shape := side (',' side)* '->' side (',' side)*
    side  := dim*
    dim   := name | '1' | '(' dim+ ')' | '[' dim+ ('|' dim+)* ']'
"""

from __future__ import annotations

import re
from collections.abc import Iterator

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
