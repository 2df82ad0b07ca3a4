"""Hints for names that differ only by a prefix: ``dense/kernel`` is wanted, ``params/dense/kernel`` exists."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence

from reshard.errors import LayoutError
from reshard.patterns.compile import Search, compile_pattern

_LITERAL = re.compile(r"(\^?)((?:[\w. -]+/)+)(.*)", re.DOTALL)
"""A pattern that begins with names between slashes, which mean themselves."""

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
    """A hint for a pattern that matches none of ``names`` but would with or without a prefix; "" for no hint.

    >>> pattern_hint(re.compile("^dense/"), ["params/dense/kernel", "params/dense/bias"])
    "; below 'params/' it would match 2 of them: write '^params/dense/'"
    """
    below: Counter[str] = Counter()
    for name in names:
        below.update(p for p in _prefixes(name) if p != name and pattern.search(name[len(p) :]))
    if below:
        prefix = min(below, key=lambda p: p.count("/"))
        return f"; below {prefix!r} it would match {below[prefix]} of them{_instead(pattern, prefix, names)}"
    return _without(pattern, names)


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
        if found := sum(bool(pattern.search(prefix + name)) for name in names):
            shorter = f"{anchor}{parts[len(prefix) :]}{rest}"
            return (
                f"; without {prefix!r}, with which no name begins, it would match {found} of them"
                f"{_write(shorter, names)}"
            )
    return ""


def _write(text: str, names: Sequence[str]) -> str:
    try:
        pattern = compile_pattern(text, "", LayoutError)
        return f": write {text!r}" if any(map(pattern.search, names)) else ""
    except LayoutError:
        return ""  # a LayoutMap's key may be a pattern of Python alone


def _prefixes(name: str) -> Iterator[str]:
    parts = name.split("/")[:-1][:_DEPTH]
    return ("/".join(parts[: depth + 1]) + "/" for depth in range(len(parts)))
