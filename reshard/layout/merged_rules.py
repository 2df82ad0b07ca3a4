r"""Few rules for many tensors: names of equal axes are merged into patterns that match nothing else.

Every tensor is given the shortest end of its name, whole parts between slashes, at which all tensors
agree on their axes; numbers count as one part (``[0-9]+``)::

    params/layers/0/mlp/kernel     [null, model]
    params/layers/0/out/kernel     [model, null]      (^|/)mlp/kernel$   [null, model]
    params/layers/1/mlp/kernel     [null, model]  →   (^|/)out/kernel$   [model, null]
    params/layers/1/out/kernel     [model, null]      (^|/)embed$        [model, null]
    params/embed                   [model, null]

Ends that differ in one part then become one pattern, ``(^|/)(query|key|value)/kernel$``. No two patterns match the same
name, so their order does not matter. If no name has a slash, as in models of Hugging Face, parts are those between dots:
``(^|\.)(q|k|v)_proj\.weight$``.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterator, Mapping, Sequence, Set

from msgspec import Struct
from msgspec.structs import replace

from reshard.answers.shared import Axes

_DIGITS = re.compile(r"[0-9]+")
_SPECIAL = re.compile(r"[\\.^$*+?{}\[\]|()]")
_NUMBER = "\0"
"""Stands for any number in a part of a name; no name has it."""


class MergedRule(Struct, frozen=True):
    """A pattern, the axes of all tensors that it matches, and their names."""

    match: str
    axes: Axes
    names: tuple[str, ...]


class _End(Struct, frozen=True):
    """Alternatives for each part at the end of a name, or for the whole name."""

    parts: tuple[frozenset[str], ...]
    is_whole: bool
    is_numbered: bool


def merged_rules(axes: Mapping[str, Axes]) -> list[MergedRule]:
    """Rules that give each name its axes, except for trailing None; no rule matches a name without axes.

    Names must not contain NUL. Rules are in the order of their first names.
    """
    wanted = {name: _trimmed(own) for name, own in axes.items()}
    letters = set().union(*wanted)
    separator = "." if "." in letters and "/" not in letters else "/"
    found: dict[tuple[Axes, _End], list[str]] = {}
    for name, end in _ends(wanted, separator).items():
        if wanted[name]:
            found.setdefault((wanted[name], end), []).append(name)
    stop = r"\Z" if any("\n" in name for name in wanted) else "$"
    return [
        MergedRule(_pattern(end, separator, stop), own, tuple(names))
        for (own, end), names in _merged(found).items()
    ]


def _trimmed(axes: Axes) -> Axes:
    """The axes without trailing None, which padding adds again."""
    while axes and axes[-1] is None:
        axes = axes[:-1]
    return axes


def _ends(wanted: Mapping[str, Axes], separator: str) -> dict[str, _End]:
    """The shortest end of each name on which all names agree; numbers are kept only if that is needed."""
    numbered = {name: _DIGITS.sub(_NUMBER, name).split(separator) for name in wanted}
    known = _shortest(numbered, wanted, frozenset(wanted), is_numbered=True)
    left = frozenset(wanted) - known.keys()
    plain = {name: name.split(separator) for name in wanted} if left else {}
    return known | _shortest(plain, wanted, left, is_numbered=False)


def _shortest(
    parts: Mapping[str, list[str]],
    wanted: Mapping[str, Axes],
    names: frozenset[str],
    *,
    is_numbered: bool,
) -> dict[str, _End]:
    """For each of ``names``, the shortest end that only names with the same axes have; some names have no such end."""
    seen: dict[_Candidate, set[Axes | None]] = {}
    for name, own in parts.items():
        for candidate in _candidates(own):
            seen.setdefault(candidate, set()).add(wanted[name] if name in names else None)
    found = {}
    for name in (name for name in parts if name in names):
        for candidate in _candidates(parts[name]):
            if len(seen[candidate]) == 1 and None not in seen[candidate]:
                is_whole, end = candidate
                alone = tuple(frozenset([part]) for part in end)
                found[name] = _End(alone, is_whole, is_numbered)
                break
    return found


_Candidate = tuple[bool, tuple[str, ...]]
"""A flag for the whole name, and the parts."""


def _candidates(parts: Sequence[str]) -> Iterator[_Candidate]:
    """Every end of a name, from the shortest, and at last the whole name."""
    yield from ((False, tuple(parts[-n:])) for n in range(1, len(parts) + 1))
    yield True, tuple(parts)


_Found = dict[tuple[Axes, _End], list[str]]


def _merged(found: _Found) -> _Found:
    """Merges ends with equal axes that differ in one part, until there are no more."""
    while True:
        before = len(found)
        longest = max((len(end.parts) for _, end in found), default=0)
        for place in range(longest):
            found = _merged_at(found, place)
        if len(found) == before:
            return found


def _merged_at(found: _Found, place: int) -> _Found:
    """Merges ends that differ only in the part at ``place``, counted from the end."""
    alike: dict[Hashable, list[tuple[Axes, _End]]] = {}
    for axes, end in found:
        at = len(end.parts) - 1 - place
        others = (end.parts[:at], end.parts[at + 1 :]) if at >= 0 else end.parts
        alike.setdefault((axes, end.is_whole, end.is_numbered, at, others), []).append((axes, end))
    merged: _Found = {}
    for keys in alike.values():
        axes, end = keys[0]
        at = len(end.parts) - 1 - place
        if at >= 0:
            union = frozenset[str]().union(*(other.parts[at] for _, other in keys))
            end = replace(end, parts=(*end.parts[:at], union, *end.parts[at + 1 :]))
        merged[axes, end] = [name for key in keys for name in found[key]]
    return merged


def _pattern(end: _End, separator: str, stop: str) -> str:
    between = _escaped(separator)
    start = "^" if end.is_whole else f"(^|{between})"
    return f"{start}{between.join(map(_part, end.parts))}{stop}"


def _part(alternatives: frozenset[str]) -> str:
    """A pattern for the alternatives of one part; alternatives that differ only in one number share the text around
    it."""
    (form, *others) = {_DIGITS.sub(_NUMBER, text) for text in alternatives}
    if len(alternatives) > 1 and not others and form.count(_NUMBER) == 1:
        before, after = map(_escaped, form.split(_NUMBER))
        return f"{before}{_choice(set(_DIGITS.findall(' '.join(alternatives))))}{after}"
    return _choice(alternatives)


def _choice(alternatives: Set[str]) -> str:
    patterns = [
        _escaped(text) for text in sorted(alternatives, key=lambda t: (len(t) * t.isdigit(), t))
    ]
    return patterns[0] if len(patterns) == 1 else f"({'|'.join(patterns)})"


def _escaped(text: str) -> str:
    return _SPECIAL.sub(r"\\\g<0>", text).replace(_NUMBER, "[0-9]+")
