"""Hints for names that differ only by a prefix: ``dense/kernel`` is wanted, ``params/dense/kernel`` exists."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import islice

from reshard.errors import LayoutError
from reshard.patterns.compile import Search, compile_pattern

_LITERAL = re.compile(r"(\^?)((?:[\w. -]+/)+)(.*)", re.DOTALL)
"""A pattern that begins with names between slashes, which mean themselves."""

_TEXT = re.compile(r"(\^?)([\w. /-]*[\w.-])(/?\$?)")
"""A pattern that is a name, or a part of one."""

_LETTER = re.compile(r"[^\W_]")

_COMPARED = 2000
"""Most names that are compared with the text of a pattern."""

_SHOWN = 5

_DEPTH = 4
"""Prefixes of more parts than this are not looked for."""


def prefixes_above(wanted: Collection[str], there: Collection[str]) -> list[str]:
    """Every prefix, such as ``"params/"``, below which all of ``wanted`` exist; none if ``wanted`` is empty."""
    if not wanted:
        return []
    first, found = next(iter(wanted)), set(there)
    tail = f"/{first}"
    prefixes = sorted(name[: -len(first)] for name in found if name.endswith(tail))
    return [p for p in prefixes if all(p + name in found for name in wanted)]


def surplus_prefix(wanted: Collection[str], there: Collection[str]) -> str | None:
    """The prefix, such as ``"params/"``, without which all of ``wanted`` exist."""
    if not wanted:
        return None
    found = set(there)
    for prefix in _prefixes(next(iter(wanted))):
        if all(name.startswith(prefix) and name[len(prefix) :] in found for name in wanted):
            return prefix
    return None


def with_folders(names: Iterable[str]) -> set[str]:
    """The names, and every name above one of them."""
    return {part for name in names for part in (name, *(p[:-1] for p in _prefixes(name)))}


def pattern_hint(pattern: Search, names: Sequence[str]) -> str:
    """A hint for a pattern that matches none of ``names``: a prefix too few or too many, or a near name; "" for no hint.

    >>> pattern_hint(re.compile("^dense/"), ["params/dense/kernel", "params/dense/bias"])
    "; below 'params/' it would match 2 of them: write '^params/dense/'"
    >>> pattern_hint(re.compile("^parms/"), ["params/dense/kernel", "step"])
    "; the nearest name is 'params': write '^params/'"
    >>> pattern_hint(re.compile("^params/"), ["model/dense/kernel", "step"])
    "; no name begins with 'params/': they begin with 'model/', 'step'"
    """
    below: Counter[str] = Counter()
    for name in names:
        below.update(p for p in _prefixes(name) if p != name and pattern.search(name[len(p) :]))
    if below:
        prefix = min(below, key=lambda p: p.count("/"))
        return f"; below {prefix!r} it would match {below[prefix]} of them{_instead(pattern, prefix, names)}"
    return _without(pattern, names) or _near(pattern, names) or _beginnings(pattern, names)


def _instead(pattern: Search, prefix: str, names: Sequence[str]) -> str:
    """The remedy with the prefix in the pattern; "" for a pattern that does not begin with ``^``."""
    if not pattern.pattern.startswith("^"):
        return ""
    return _write("^" + re.escape(prefix) + pattern.pattern[1:], names)


def _without(pattern: Search, names: Sequence[str]) -> str:
    literal = _LITERAL.fullmatch(pattern.pattern)
    if literal is None:
        return ""
    anchor, parts, rest = literal.groups()
    for prefix in _prefixes(f"{parts}x"):
        if not _LETTER.search(parts[len(prefix) :] + rest):
            break  # the rest would match any name
        if found := sum(bool(pattern.search(prefix + name)) for name in names):
            shorter = f"{anchor}{parts[len(prefix) :]}{rest}"
            return (
                f"; without {prefix!r}, with which no name begins, it would match {found} of them"
                f"{_write(shorter, names)}"
            )
    return ""


def _near(pattern: Search, names: Sequence[str]) -> str:
    """A part of a name, or several, that is spelled nearly as the pattern's text."""
    text = _TEXT.fullmatch(pattern.pattern)
    if text is None:
        return ""
    some = names[:: 1 + len(names) // _COMPARED]
    parts = {part: None for name in some for part in (*name.split("/"), *_folders(name))}
    begin, wanted, end = text.groups()
    from difflib import get_close_matches  # only an error needs it

    found = get_close_matches(wanted[:100], list(islice(parts, _COMPARED)), n=1, cutoff=0.75)
    if not found:
        return ""
    return (
        f"; the nearest name is {found[0]!r}{_write(f'{begin}{re.escape(found[0])}{end}', names)}"
    )


def _beginnings(pattern: Search, names: Sequence[str]) -> str:
    """A hint that lists the beginnings of names, for a pattern that is a beginning."""
    literal = _LITERAL.fullmatch(pattern.pattern)
    if literal is None or not literal[1] or any(n.startswith(literal[2]) for n in names):
        return ""
    there = list({name[: name.find("/") + 1] or name: None for name in names})
    some = ", ".join(map(repr, there[:_SHOWN])) + (", …" if there[_SHOWN:] else "")
    return f"; no name begins with {literal[2]!r}: they begin with {some}" if there else ""


def _folders(name: str) -> Iterator[str]:
    return (prefix[:-1] for prefix in _prefixes(name))


def _write(text: str, names: Sequence[str]) -> str:
    try:
        pattern = compile_pattern(text, "", LayoutError)
        return f": write {text!r}" if any(map(pattern.search, names)) else ""
    except LayoutError:
        return ""  # a LayoutMap's key may be a pattern of Python alone


def _prefixes(name: str) -> Iterator[str]:
    parts = name.split("/")[:-1][:_DEPTH]
    return ("/".join(parts[: depth + 1]) + "/" for depth in range(len(parts)))
