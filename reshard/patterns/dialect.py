r"""Translates a regular expression of Python's dialect to RE2's, which searches in linear time.

Python's parser reads the pattern, and each part of its tree is written as RE2 writes it. So both read the same text
alike (``\Z``, ``{,3}``, octal escapes, ``(?x)``, sets). Parts are refused if RE2 lacks them or may find another match
for them.

Some parts match as in Python only in some names: ``\d \s \w \b (?i)`` in names of ASCII characters, ``$`` in names
that do not end with a newline. The Translation lists those of the pattern; the search checks the name.

A set of characters is a tuple of ranges of code points, both ends included.
"""

from __future__ import annotations

import re
import string
from collections.abc import Callable, Iterable, Mapping, Sequence
from re import _constants as op  # type: ignore[attr-defined]  # no stub has it
from re import _parser  # type: ignore[attr-defined]  # no stub has it
from typing import Any

from msgspec import Struct

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


MAX_LENGTH = 16384
"""Most characters of a pattern."""

MAX_DEPTH = 100
"""Deepest nesting of parentheses."""

MAX_COUNT = 1000
"""Largest count of a repetition; nested counts are multiplied."""

_TYPES = op.SRE_FLAG_ASCII | op.SRE_FLAG_UNICODE | op.SRE_FLAG_LOCALE


class RefusedError(Exception):
    """A pattern that is not supported; the message names the part, and the remedy."""


class Translation(Struct, frozen=True):
    """A pattern for RE2.

    Attributes:
        source: the pattern in RE2's dialect.
        groups: the number of capturing groups.
        group_names: the numbers of named groups.
        repeated: the number of parts that counts such as {1000} add when the pattern is compiled.
        ascii_part: a part that matches as in Python only if the name is ASCII; None if there is none.
        has_end: True if it has a ``$``, which Python also matches before a final newline.
        has_inside: True if it has a ``\\B``; Python 3.14 and older versions differ on an empty name.
    """

    source: str
    groups: int
    group_names: Mapping[str, int]
    repeated: int
    ascii_part: str | None
    has_end: bool
    has_inside: bool


def translated(pattern: str, *, in_lines: bool) -> Translation:
    """The pattern for RE2, to be searched in one name, or in a text in which each line is a name.

    Raises ``re.error`` if the text is not a regular expression, RefusedError if it is not supported.
    """
    tree = _tree(pattern)
    writer = _Writer(in_lines)
    return Translation(
        writer.sequence(tree, tree.state.flags, 1),
        tree.state.groups - 1,
        dict(tree.state.groupdict),
        writer.repeated,
        next(iter(writer.ascii_parts), None),
        writer.has_end,
        writer.has_inside,
    )


def _tree(pattern: str) -> Any:
    if len(pattern) > MAX_LENGTH:
        raise RefusedError(
            f"it has {len(pattern)} characters, more than {MAX_LENGTH}; use several rules"
        )
    deep = f"parentheses are nested more than {MAX_DEPTH} deep; use fewer"
    if _depth(pattern) > MAX_DEPTH:
        raise RefusedError(deep)
    try:
        return _parser.parse(pattern)
    except RecursionError:
        raise RefusedError(deep) from None
    except OverflowError:
        raise RefusedError(_TOO_MANY) from None


_TOKENS = re.compile(r"(?s)\\.|\[\^?\]?(?P<set>(?:\\.|[^\]\\])*)|[()]")
_ODD_IN_SET = re.compile(r"\A\[|\[[:.=]|--|&&|~~|\|\|")


def _depth(pattern: str) -> int:
    """The depth of nested parentheses; escaped ones and those in sets do not count.

    Raises RefusedError if Python warns that the meaning of a set may change.
    """
    depth = deepest = 0
    for found in _TOKENS.finditer(pattern):
        odd = _ODD_IN_SET.search(re.sub(r"(?s)\\.", "a", found["set"] or ""))
        if odd is not None:
            raise RefusedError(
                f"{odd[0]!r} in a set has more than one meaning in regular expressions; escape it with a backslash, "
                "and write [0-9] for [[:digit:]]"
            )
        depth += {"(": 1, ")": -1}.get(found[0], 0)
        deepest = max(deepest, depth)
    return deepest


class _Writer:
    """Writes a parsed pattern for RE2, and notes the parts that depend on the name.

    Args:
        in_lines: True if each line of the text is a name.
    """

    def __init__(self, in_lines: bool) -> None:
        self.in_lines = in_lines
        self.ascii_parts: list[str] = []
        self.repeated = 0
        self.has_end = False
        self.has_inside = False

    def sequence(self, items: Iterable[tuple[Any, Any]], flags: int, times: int) -> str:
        """A sequence of parts; ``times`` is the product of the counts around it."""
        return "".join(self._part(kind, value, flags, times) for kind, value in items)

    def _part(self, kind: Any, value: Any, flags: int, times: int) -> str:
        if kind is op.LITERAL and not flags & op.SRE_FLAG_IGNORECASE:
            self.repeated += times - 1
            return self._character(value)
        if kind in _SETS:
            self.repeated += times - 1
            return self._set(_SETS[kind](value), flags)
        if kind is op.AT:
            return self._place(value, flags)
        if kind is op.BRANCH:
            return f"(?:{'|'.join(self.sequence(branch, flags, times) for branch in value[1])})"
        if kind is op.SUBPATTERN:
            return self._group(value, flags, times)
        if kind is op.MAX_REPEAT or kind is op.MIN_REPEAT:
            return self._repeat(kind, value, flags, times)
        raise RefusedError(_REFUSED.get(str(kind), f"{kind} is not supported; write it otherwise"))

    def _set(self, items: list[tuple[Any, Any]], flags: int) -> str:
        if items[0][0] is op.ANY:
            return character_class(self._ranges(*items[0], flags), without_newline=self.in_lines)
        is_negated = items[0][0] is op.NEGATE
        ranges = tuple(r for item in items[is_negated:] for r in self._ranges(*item, flags))
        if flags & op.SRE_FLAG_IGNORECASE:
            self.ascii_parts.append("(?i)")
            ranges = ascii_of_any_case(ranges, ascii_only=bool(flags & op.SRE_FLAG_ASCII))
        found = complement(ranges) if is_negated else ranges
        return character_class(found, without_newline=self.in_lines)

    def _character(self, code: int) -> str:
        if self.in_lines and code == NEWLINE:
            return character_class((), without_newline=True)
        if 0xD800 <= code <= 0xDFFF:
            raise RefusedError(
                f"it has the lone surrogate {code:#x}, which no name has; write the whole character"
            )
        return literal(code)

    def _ranges(self, kind: Any, value: Any, flags: int) -> CharacterRanges:
        if kind is op.LITERAL:
            return ((value, value),)
        if kind is op.RANGE:
            return (value,)
        if kind is op.ANY:
            return ((0, LAST),) if flags & op.SRE_FLAG_DOTALL else complement([(NEWLINE, NEWLINE)])
        name, ascii_only = str(value), bool(flags & op.SRE_FLAG_ASCII)
        if not ascii_only:
            written = CATEGORIES[name.rpartition("_")[2]]
            self.ascii_parts.append(written.upper() if "_NOT_" in name else written)
        found = category(name, ascii_only=ascii_only)
        # Under (?i) the characters of a set match in any case, those of a category do not.
        return of_ascii(found) if flags & op.SRE_FLAG_IGNORECASE else found

    def _place(self, value: Any, flags: int) -> str:
        many = self.in_lines or flags & op.SRE_FLAG_MULTILINE
        if value is op.AT_BEGINNING:
            return "(?m:^)" if many else r"\A"
        if value is op.AT_END:
            self.has_end |= not flags & op.SRE_FLAG_MULTILINE
            return "(?m:$)" if many else r"\z"
        if value is op.AT_BEGINNING_STRING:
            return "(?m:^)" if self.in_lines else r"\A"
        if value is op.AT_END_STRING:
            return "(?m:$)" if self.in_lines else r"\z"
        return self._boundary(value, flags)

    def _boundary(self, value: Any, flags: int) -> str:
        written = r"\b" if value is op.AT_BOUNDARY else r"\B"
        self.has_inside |= written == r"\B"
        if not flags & op.SRE_FLAG_ASCII:
            self.ascii_parts.append(written)
        return written

    def _group(self, value: Any, flags: int, times: int) -> str:
        group, added, removed, items = value
        if added & _TYPES:  # Python itself mistakes (?a:\W) in some searches
            raise RefusedError(
                "(?a:…) and (?u:…) are not supported; write (?a) at the start of the pattern"
            )
        begin = "(?:" if group is None else "("
        return f"{begin}{self.sequence(items, (flags | added) & ~removed, times)})"

    def _repeat(self, kind: Any, value: Any, flags: int, times: int) -> str:
        least, most, items = value
        is_open = most is op.MAXREPEAT
        if most > 1 and items.getwidth()[0] == 0:
            raise RefusedError(_EMPTY)
        written = max(1, least if is_open else most)
        if written * times > MAX_COUNT:
            raise RefusedError(_TOO_MANY)
        body = self.sequence(items, flags, times * written)
        return f"(?:{body}){_count(least, most, is_open)}{'?' if kind is op.MIN_REPEAT else ''}"


def _count(least: int, most: int, is_open: bool) -> str:
    if is_open and least <= 1:
        return "+" if least else "*"
    if (least, most) == (0, 1):
        return "?"
    return f"{{{least},}}" if is_open else f"{{{least},{most}}}"


_SETS: Mapping[Any, Callable[[Any], list[tuple[Any, Any]]]] = {
    op.LITERAL: lambda value: [(op.LITERAL, value)],
    op.NOT_LITERAL: lambda value: [(op.NEGATE, None), (op.LITERAL, value)],
    op.ANY: lambda value: [(op.ANY, value)],
    op.IN: lambda value: value,
}
"""Parts that match one character, as the items of a set do."""

_AROUND = (
    "look-ahead and look-behind ((?=…), (?!…), (?<=…), (?<!…)) are not supported; leave names out with drop, or put a "
    "rule that takes them before this one"
)
_BACK = (
    "references to a group ((?P=name), \\1, (?(1)…)) are not supported; write out the alternatives"
)
_ATOMIC = "possessive quantifiers and atomic groups are not supported; use a plain quantifier, such as a* for a*+"
_TOO_MANY = (
    f"it repeats something more than {MAX_COUNT} times, nested counts multiplied; use * or +"
)
_EMPTY = "it repeats a part that can match nothing; make that part match at least one character, such as (a+)* for (a*)*"

_REFUSED = {
    "ASSERT": _AROUND,
    "ASSERT_NOT": _AROUND,
    "FAILURE": _AROUND,
    "GROUPREF": _BACK,
    "GROUPREF_EXISTS": _BACK,
    "ATOMIC_GROUP": _ATOMIC,
    "POSSESSIVE_REPEAT": _ATOMIC,
}
