"""Select, drop, rename and cast: rules over names, made into one rewrite per kept leaf.

Every rule searches the source's name; a ``cast`` may be about all tensors of a dtype instead.
``select`` keeps what any of its patterns finds, ``drop`` then removes; of the ``rename`` and of the
``cast`` rules the first that matches applies. A rule that matches nothing is an error, because a
typing mistake here loses weights.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence

from msgspec import Struct

from reshard.errors import PlanError
from reshard.layout.cast_rule import (
    CastRule,
    kind_of,
    left_side_for,
    parse_cast,
    refuse_unstored,
)
from reshard.layout.changes import Changes
from reshard.layout.prefixes import pattern_hint
from reshard.layout.tensor_spec import TensorSpec


class Rewrite(Struct, frozen=True):
    """A leaf that is kept, its name in the target, and the dtype it is cast to (None: unchanged).

    Attributes:
        saturate: whether the cast makes values beyond the largest finite one that one.
    """

    source: str
    target: str
    dtype: str | None = None
    saturate: bool = False


def rewrites(
    changes: Changes,
    names: Sequence[str],
    tensors: Mapping[str, TensorSpec],
    keys: Collection[str] = (),
) -> tuple[Rewrite, ...]:
    """One Rewrite per leaf of ``names`` that is kept, in order.

    ``tensors`` holds the specs of those leaves that are tensors, ``keys`` names those that are PRNG keys.
    Raises PlanError for a rule that matches nothing, a bad pattern, names that collide, a selection
    without tensors, and a cast that would change a value's kind without being asked for by name.
    """
    select = [_compiled("select", p) for p in changes.select]
    drop = [_compiled("drop", p) for p in changes.drop]
    rename = [(_compiled("rename", p), to) for p, to in changes.rename]
    cast = [parse_cast(what, to) for what, to in changes.cast]
    _refuse_idle("select", select, names)
    selected = [n for n in names if not select or any(p.search(n) for p in select)]
    _refuse_idle("drop", drop, selected)
    kept = [n for n in selected if not any(p.search(n) for p in drop)]
    if tensors and not any(n in tensors for n in kept):
        raise PlanError(
            f"nothing is left: select and drop rules keep none of the {len(tensors)} tensors; "
            "loosen them"
        )
    _refuse_idle("rename", [p for p, _ in rename], kept)
    _refuse_idle_casts(cast, [tensors[n] for n in kept if n in tensors], keys)
    result = tuple(_rewrite(n, _renamed(n, rename), tensors.get(n), cast, n in keys) for n in kept)
    _refuse_collisions(result)
    return result


def _rewrite(
    name: str, target: str, spec: TensorSpec | None, rules: Sequence[CastRule], is_key: bool
) -> Rewrite:
    if spec is not None:
        for rule in rules:
            if rule.is_about(name, spec.dtype, is_key=is_key):
                _refuse_cast(rule, name, spec.dtype, is_key)
                if rule.to != spec.dtype:
                    return Rewrite(name, target, rule.to, rule.saturate)
                break
    return Rewrite(name, target)


def check_rules(changes: Changes) -> None:
    """Raises PlanError for patterns and dtypes that make no sense for any checkpoint."""
    for kind in ("select", "drop"):
        for pattern in getattr(changes, kind):
            _compiled(kind, pattern)
    for pattern, _ in changes.rename:
        _compiled("rename", pattern)
    for what, to in changes.cast:
        parse_cast(what, to)
    refuse_unstored(changes.cast)


def _compiled(kind: str, pattern: str) -> re.Pattern[str]:
    try:
        return re.compile(pattern)
    except re.error as error:
        raise PlanError(
            f"{kind} {pattern!r} is no regular expression: {error}; escape special characters with a backslash"
        ) from error


def _refuse_idle(kind: str, patterns: Sequence[re.Pattern[str]], names: Sequence[str]) -> None:
    for pattern in patterns:
        if not any(map(pattern.search, names)):
            some = ", ".join(names[:5]) + (", …" if len(names) > 5 else "")
            raise PlanError(
                f"{kind} {pattern.pattern!r} matches none of the {len(names)} names it could apply to "
                f"({some}){pattern_hint(pattern, names)}; correct or remove it"
            )


def _renamed(name: str, rules: Sequence[tuple[re.Pattern[str], str]]) -> str:
    for pattern, to in rules:
        if pattern.search(name):
            return _checked_name(name, _substituted(pattern, to, name))
    return name


def _substituted(pattern: re.Pattern[str], to: str, name: str) -> str:
    try:
        return pattern.sub(to, name, count=1)
    except (re.error, IndexError) as error:
        raise PlanError(
            f"rename {pattern.pattern!r}={to!r}: the replacement cannot be made: {error}; "
            f"the pattern has {pattern.groups} groups"
        ) from error


def _checked_name(name: str, renamed: str) -> str:
    if (
        not renamed
        or any(part in ("", ".", "..") for part in renamed.split("/"))
        or "\0" in renamed
    ):
        raise PlanError(
            f"{name!r} would be renamed to {renamed!r}, which is no usable name; every part between slashes "
            "must be there and be neither '.' nor '..'"
        )
    return renamed


def _refuse_collisions(result: Sequence[Rewrite]) -> None:
    seen: dict[str, str] = {}
    for rewrite in result:
        if rewrite.target in seen:
            raise PlanError(
                f"{seen[rewrite.target]!r} and {rewrite.source!r} would both be written as "
                f"{rewrite.target!r}; rename or drop one of them"
            )
        seen[rewrite.target] = rewrite.source
    for name in seen:
        parent = name.rpartition("/")[0]
        while parent:
            if parent in seen and (seen[name] != name or seen[parent] != parent):
                raise PlanError(
                    f"{seen[name]!r} would be written as {name!r}, but {parent!r} is a leaf itself"
                    f"{_once(seen[parent], parent)}; choose another name"
                )
            parent = parent.rpartition("/")[0]


def _once(source: str, target: str) -> str:
    return "" if source == target else f" (now {source!r})"


def _refuse_idle_casts(
    rules: Sequence[CastRule], tensors: Sequence[TensorSpec], keys: Collection[str]
) -> None:
    for rule in rules:
        if rule.pattern is not None:
            _refuse_idle("cast", [rule.pattern], [spec.name for spec in tensors])
        elif not any(rule.is_about(s.name, s.dtype, is_key=s.name in keys) for s in tensors):
            found = ", ".join(sorted({s.dtype for s in tensors if s.name not in keys})) or "none"
            raise PlanError(
                f"{rule.text}: none of the {len(tensors)} tensors is {rule.what} (their dtypes: {found}; PRNG keys "
                f"are never cast); correct or remove it, or write '({rule.what})' to search the names for the word"
            )


def _refuse_cast(rule: CastRule, name: str, source: str, is_key: bool) -> None:
    """PlanError for a cast that would lose what a value means, unless it is asked for by name."""
    dtype, found = rule.to, f"{rule.text} {'takes' if rule.dtypes else 'matches'} {name!r}"
    if is_key:
        raise PlanError(
            f"{found}, which is a PRNG key: its bits have no numeric meaning; narrow the pattern so that it leaves "
            f"the key out{_or_all(dtype)}"
        )
    if kind_of(source) == "complex" and kind_of(dtype) != "complex":
        raise PlanError(
            f"{found} of dtype {source}: the imaginary part would be lost; narrow the pattern{_or_all(dtype)}"
        )
    if kind_of(source) != kind_of(dtype) and not _is_by_name(rule, name):
        own = f"cast '{left_side_for(name)}={dtype}'"
        remedy = (
            f"name the tensors that you mean, such as {own}, in place of it"
            if rule.dtypes
            else f"narrow the pattern{_or_all(dtype)}, or add {own} before it if that is what you want"
        )
        raise PlanError(
            f"{found} of dtype {source}: {kind_of(source)} to {kind_of(dtype)} is done only when asked for by name; "
            f"{remedy}"
        )


def _or_all(dtype: str) -> str:
    """The remedy that most need: a rule about a kind leaves the others out."""
    kind = kind_of(dtype)
    return f", or write '{kind}={dtype}' for every {kind} tensor and no other"


def _is_by_name(rule: CastRule, name: str) -> bool:
    bare = rule.what.removeprefix("^").removesuffix("$")
    return rule.pattern is not None and bare in (name, re.escape(name))
