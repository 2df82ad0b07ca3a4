"""Sets of characters of Python's ``re``, as RE2's character classes.

A set is a tuple of ranges of code points, both ends included. Categories (``\\d``, ``\\s``, ``\\w``) and ``(?i)``
are right for ASCII text only; ``dialect`` notes if a pattern has them.
"""

from __future__ import annotations

import string
from collections.abc import Iterable, Sequence
from typing import Any

_Range = tuple[int, int]
CharacterRanges = tuple[_Range, ...]

LAST = 0x10FFFF
NEWLINE = 0x0A

_DIGITS: CharacterRanges = ((0x30, 0x39),)
_WORD: CharacterRanges = ((0x30, 0x39), (0x41, 0x5A), (0x5F, 0x5F), (0x61, 0x7A))
_SPACE: CharacterRanges = ((0x09, 0x0D), (0x20, 0x20))
_SPACE_OF_UNICODE: CharacterRanges = ((0x09, 0x0D), (0x1C, 0x20))
"""Python treats the four ASCII separators as spaces, unless the flag is ``(?a)``."""

CATEGORIES = {"DIGIT": r"\d", "SPACE": r"\s", "WORD": r"\w"}
"""The text of a category in a pattern, by the end of the category's name in Python's parser."""

_PLAIN = {ord(letter): letter for letter in string.ascii_letters + string.digits + "_/"}

FOLDED_TO_ASCII = {0x130: "i", 0x131: "i", 0x17F: "s", 0x212A: "k"}
"""Characters beyond ASCII that equal an ASCII letter under ``(?i)``: İ, ı, ſ and the Kelvin sign."""


def category(name: str, *, ascii_only: bool) -> CharacterRanges:
    """The set of one of the parser's categories, such as ``CATEGORY_NOT_WORD``."""
    kind = name.rpartition("_")[2]
    if kind == "DIGIT":
        ranges = _DIGITS
    elif kind == "WORD":
        ranges = _WORD
    else:
        ranges = _SPACE if ascii_only else _SPACE_OF_UNICODE
    return complement(ranges) if "_NOT_" in name else ranges


def complement(ranges: Iterable[_Range]) -> CharacterRanges:
    """Every other character."""
    found: list[_Range] = []
    begin = 0
    for low, high in sorted(ranges):
        if low > begin:
            found.append((begin, low - 1))
        begin = max(begin, high + 1)
    return (*found, (begin, LAST)) if begin <= LAST else tuple(found)


def of_ascii(ranges: Iterable[_Range]) -> CharacterRanges:
    """The ASCII characters of a set."""
    return tuple((low, min(high, 127)) for low, high in ranges if low < 128)


def ascii_of_any_case(ranges: Sequence[_Range], *, ascii_only: bool) -> CharacterRanges:
    """The ASCII characters that a set matches under ``(?i)``."""
    codes = (c for c in range(128) if any(map(_in(ranges), _cases(c, ascii_only))))
    return tuple((c, c) for c in codes)


def _in(ranges: Sequence[_Range]) -> Any:
    return lambda code: any(low <= code <= high for low, high in ranges)


def _cases(code: int, ascii_only: bool) -> list[int]:
    """The characters that equal an ASCII character under ``(?i)``, itself among them."""
    letter = chr(code)
    others = [] if ascii_only else [c for c, to in FOLDED_TO_ASCII.items() if to == letter.lower()]
    return [ord(letter.lower()), ord(letter.upper()), *others]


def character_class(ranges: Iterable[_Range], *, without_newline: bool) -> str:
    r"""RE2's class of a set.

    >>> character_class([(97, 122), (10, 10)], without_newline=True)
    '[\\x{61}-\\x{7a}]'
    """
    excluded = ((NEWLINE, NEWLINE),) if without_newline else ()
    merged = complement((*complement(ranges), *excluded))
    if not merged:
        return rf"[^\x{{0}}-\x{{{LAST:x}}}]"
    return "[" + "".join(_range(*found) for found in merged) + "]"


def _range(low: int, high: int) -> str:
    return f"{_code(low)}-{_code(high)}" if low < high else _code(low)


def _code(code: int) -> str:
    return rf"\x{{{code:x}}}"


def literal(code: int) -> str:
    """RE2's pattern of one character.

    >>> literal(ord("a")), literal(ord("+"))
    ('a', '\\\\x{2b}')
    """
    return _PLAIN.get(code) or _code(code)
