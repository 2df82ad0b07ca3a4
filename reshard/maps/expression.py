"""Expression: arithmetic in a map, such as ``sqrt(p * two)`` or ``2*i+1``; parsed here, never by Python.

::

    sum     := product (('+' | '-') product)*
    product := factor (('*' | '/') factor)*
    factor  := number | name | function '(' sum ')' | '(' sum ')' | '-' factor
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any

from msgspec import Struct

Number = Fraction | float

MAX_CHARACTERS = 200
"""Longest expression; it bounds the depth of its parentheses, too."""

_WORD = re.compile(
    r"\s*(?:(\d+(?:\.\d+)?(?:[eE][+-]?\d{1,3})?)|([A-Za-z_]\w*)|([-+*/()]))", re.ASCII
)


class Expression(Struct, frozen=True):
    """Arithmetic over names of sizes and indices.

    Attributes:
        parts: in postfix order: numbers, names, and operators that take the values before them.
    """

    text: str
    parts: tuple[Any, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """The names in it, each once, in the order of the text."""
        return tuple(dict.fromkeys(p[1] for p in self.parts if p[0] == "name"))

    @property
    def is_name(self) -> bool:
        """True if it is a name alone, as most indices are."""
        return self.parts == (("name", self.text),)

    def value(self, values: Mapping[str, int]) -> Number:
        """Its value; ValueError for a division by zero, a root of a negative number, or a number that is too large."""
        stack: list[Number] = []
        for kind, what in self.parts:
            if kind == "number":
                stack.append(what)
            elif kind == "name":
                stack.append(Fraction(values[what]))
            elif kind == "call":
                stack.append(_FUNCTIONS[what](stack.pop()))
            else:
                second, first = stack.pop(), stack.pop()
                stack.append(_combined(what, first, second))
        return stack.pop()

    def whole(self, values: Mapping[str, int]) -> int:
        """Its value as a whole number of at least 0; ValueError for any other."""
        found = values[self.text] if self.is_name else self.value(values)
        if found < 0 or found != int(found):
            raise ValueError(
                f"{self.text} is {float(found):g}, which is no whole number of at least 0"
            )
        return int(found)

    def solved(self, name: str, number: int, values: Mapping[str, int]) -> int | None:
        """The value of ``name`` for which the expression is ``number``; None where no whole number of at least 0 fits.

        Raises ValueError unless it grows in equal steps with ``name``.
        """
        if self.is_name:
            return number
        at = [self.value({**values, name: n}) for n in range(3)]
        step = at[1] - at[0]
        if at[2] - at[1] != step or not step:
            raise ValueError(f"{self.text} does not grow in equal steps with {name}")
        found = (number - at[0]) / step
        if found < 0 or found != int(found):
            return None
        return int(found) if self.value({**values, name: int(found)}) == number else None


def _combined(operator: str, first: Number, second: Number) -> Number:
    if operator == "/" and not second:
        raise ValueError("a division by zero")
    try:
        found: Number = _OPERATORS[operator](first, second)
    except OverflowError:
        raise ValueError("a number that is too large") from None
    return _checked(found)


_LARGEST = 10**300


def _checked(found: Number) -> Number:
    if isinstance(found, float):
        is_large = not math.isfinite(found)
    else:  # an exact fraction, whose digits would grow without end
        is_large = not -_LARGEST < found < _LARGEST
    if is_large:
        raise ValueError("a number that is too large")
    return found


_OPERATORS: Mapping[str, Callable[[Any, Any], Any]] = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "/": lambda a, b: a / b,
}


def _root(x: Number) -> Number:
    if x < 0:
        raise ValueError(f"a root of {float(x):g}")
    whole = math.isqrt(int(x))
    return Fraction(whole) if whole * whole == x else math.sqrt(x)


def _rounding(dtype: str) -> Callable[[Number], Number]:
    """Rounds to a floating dtype: some models multiply by a factor that was stored in one."""

    def rounded(x: Number) -> Number:
        import numpy as np

        from reshard.geometry.dtypes import numpy_dtype

        with np.errstate(over="ignore"):  # what overflows is refused
            return _checked(float(np.float64(float(x)).astype(numpy_dtype(dtype))))

    return rounded


_FUNCTIONS: Mapping[str, Callable[[Number], Number]] = {
    "sqrt": _root,
    "ceil": lambda x: Fraction(math.ceil(x)),
    **{dtype: _rounding(dtype) for dtype in ("float32", "bfloat16", "float16")},
}


def parse_expression(text: str) -> Expression:
    """The expression in a text; ValueError saying what is wrong with it.

    >>> parse_expression("sqrt(p * two) / 2").value({"p": 8, "two": 2})
    Fraction(2, 1)
    """
    if len(text) > MAX_CHARACTERS:
        raise ValueError(f"arithmetic of {len(text)} characters; write at most {MAX_CHARACTERS}")
    reading = _Reading(text)
    reading.sum()
    if reading.word:
        raise ValueError(f"{reading.word!r} is not expected there in {text!r}")
    return Expression(text, tuple(reading.parts))


class _Reading:
    """A text that is read a word at a time."""

    def __init__(self, text: str) -> None:
        self.parts: list[tuple[str, Any]] = []
        self.word = ""
        self._text, self._at = text, 0
        self._next()

    def sum(self) -> None:
        self._row("+-", lambda: self._row("*/", self._factor))

    def _row(self, operators: str, part: Callable[[], None]) -> None:
        part()
        while self.word and self.word in operators:
            operator = self.word
            self._next()
            part()
            self.parts.append(("operator", operator))

    def _factor(self) -> None:
        word = self.word
        if not word:
            raise ValueError(f"{self._text!r} ends where a number or a name is expected")
        self._next()
        if word == "-":
            self.parts.append(("number", Fraction(0)))
            self._factor()
            self.parts.append(("operator", "-"))
        elif word == "(":
            self._closed()
        elif word[0].isdigit():
            self.parts.append(("number", Fraction(word)))
        elif self.word == "(" and word.isidentifier():
            if word not in _FUNCTIONS:
                raise ValueError(f"{word!r} is no function; there are {', '.join(_FUNCTIONS)}")
            self._next()
            self._closed()
            self.parts.append(("call", word))
        elif word.isidentifier():
            self.parts.append(("name", word))
        else:
            raise ValueError(f"{word!r} is not expected there in {self._text!r}")

    def _closed(self) -> None:
        """A sum and the parenthesis behind it."""
        self.sum()
        if self.word != ")":
            raise ValueError(f"a closing parenthesis is missing in {self._text!r}")
        self._next()

    def _next(self) -> None:
        if not self._text[self._at :].strip():
            self.word = ""
            return
        found = _WORD.match(self._text, self._at)
        if found is None:
            raise ValueError(
                f"{self._text[self._at :].strip()[0]!r} in {self._text!r} is no arithmetic; write + - * / ( ), numbers, names "
                f"and {', '.join(_FUNCTIONS)}"
            )
        self.word, self._at = found[0].strip(), found.end()
