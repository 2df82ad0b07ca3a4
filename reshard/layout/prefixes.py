"""Names that miss each other by a prefix alone: ``dense/kernel`` is asked for, ``params/dense/kernel`` is there."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Sequence

_LITERAL = re.compile(r"(\^?)((?:[\w. -]+/)+)(.*)", re.DOTALL)
"""A pattern that begins with names between slashes, which mean themselves."""

_DEPTH = 4
"""Prefixes of more parts than this are not looked for."""


def prefixes_above(asked: Collection[str], there: Collection[str]) -> list[str]:
    """Every prefix, such as ``"params/"``, below which all of ``asked`` are there; none where nothing is asked."""
    if not asked:
        return []
    first, found = next(iter(asked)), set(there)
    tail = f"/{first}"
    prefixes = sorted(name[: -len(first)] for name in found if name.endswith(tail))
    return [p for p in prefixes if all(p + name in found for name in asked)]


def surplus_prefix(asked: Collection[str], there: Collection[str]) -> str | None:
    """The prefix, such as ``"params/"``, without which all of ``asked`` are there."""
    if not asked:
        return None
    found = set(there)
    for prefix in _prefixes(next(iter(asked))):
        if all(name.startswith(prefix) and name[len(prefix) :] in found for name in asked):
            return prefix
    return None


def with_folders(names: Iterable[str]) -> set[str]:
    """The names, and every name above one of them."""
    return {part for name in names for part in (name, *(p[:-1] for p in _prefixes(name)))}


def pattern_hint(pattern: re.Pattern[str], names: Sequence[str]) -> str:
    """What a pattern that finds none of ``names`` would find with or without a prefix; "" where nothing.

    >>> pattern_hint(re.compile("^dense/"), ["params/dense/kernel", "params/dense/bias"])
    "; below 'params/' it would match 2 of them: write '^params/dense/'"
    """
    for prefix in sorted(
        {p for name in names for p in _prefixes(name)}, key=lambda p: p.count("/")
    ):
        below = [name[len(prefix) :] for name in names if name.startswith(prefix)]
        if found := sum(pattern.search(name) is not None for name in below):
            return f"; below {prefix!r} it would match {found} of them{_instead(pattern, prefix, names)}"
    return _without(pattern, names)


def _instead(pattern: re.Pattern[str], prefix: str, names: Sequence[str]) -> str:
    """The pattern with the prefix, where that is easily said."""
    if not pattern.pattern.startswith("^"):
        return ""
    return _write("^" + re.escape(prefix) + pattern.pattern[1:], names)


def _without(pattern: re.Pattern[str], names: Sequence[str]) -> str:
    literal = _LITERAL.fullmatch(pattern.pattern)
    if literal is None:
        return ""
    anchor, parts, rest = literal.groups()
    for prefix in _prefixes(f"{parts}x"):
        if found := sum(pattern.search(prefix + name) is not None for name in names):
            shorter = f"{anchor}{parts[len(prefix) :]}{rest}"
            return (
                f"; without {prefix!r}, with which no name begins, it would match {found} of them"
                f"{_write(shorter, names)}"
            )
    return ""


def _write(pattern: str, names: Sequence[str]) -> str:
    try:
        better = re.compile(pattern)
    except re.error:
        return ""
    return f": write {pattern!r}" if any(map(better.search, names)) else ""


def _prefixes(name: str) -> Iterator[str]:
    parts = name.split("/")[:-1][:_DEPTH]
    return ("/".join(parts[: depth + 1]) + "/" for depth in range(len(parts)))
