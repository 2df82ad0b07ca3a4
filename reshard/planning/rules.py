"""Select, drop, rename and cast: turns rules over names into one rewrite per kept leaf.

Every rule searches the source's name; a ``cast`` may name a dtype instead. ``select`` keeps the names that one of its
patterns matches, then ``drop`` removes names. The first ``rename`` rule and the first ``cast`` rule that match apply. A
rule that matches nothing is an error, because a typing mistake here loses weights.

The pairs of two checkpoints follow from the same rules: ``Pairing`` has the tensors of A with those of B, by name or by the rules
that made B of A.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from itertools import compress
from json.encoder import encode_basestring_ascii
from typing import Literal

from msgspec import Struct, field
from msgspec.structs import replace

from reshard.errors import PlanError
from reshard.formats.base import Made, Origin, Reader
from reshard.formats.contents import StoredTensor
from reshard.geometry.dtypes import PACKED, packed_text
from reshard.layout.changes import (
    Cast,
    CastRule,
    Changes,
    kind_of,
    left_side_for,
    parse_cast,
    refuse_unstored,
)
from reshard.layout.prefixes import pattern_hint
from reshard.layout.tensor_spec import TensorSpec
from reshard.patterns.compile import Counts, Names, Pattern, Replacement, compile_pattern, shown
from reshard.patterns.dialect import MAX_LENGTH

_OPPOSITE = bytes([1, *[0] * 255])
"""Turns 0 into 1, and 1 into 0."""

MAX_NAME = 4096
"""The largest number of characters of a new name."""


class Rewrite(Struct, frozen=True, gc=False):
    """A leaf that is kept, its name in the target, and the dtype that it is cast to (None: unchanged).

    Attributes:
        saturate: true if the cast clips values to the largest finite one.
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
    """One Rewrite per kept leaf of ``names``, in order.

    ``tensors`` are the specs of the leaves that are tensors; ``keys`` names the PRNG keys. Raises PlanError for a rule
    that matches nothing, a bad pattern, names that collide, a selection without tensors, and a cast that changes a
    value's kind but does not name the tensor.
    """
    kept = kept_leaves(changes, names, tensors)
    targets = _renamed(changes.rename, Names(kept))
    casts = _casts(changes.cast, [tensors[n] for n in kept if n in tensors], keys)
    result = tuple([_rewrite(n, targets.get(n, n), casts.get(n)) for n in kept])
    if targets or len(set(kept)) < len(kept):
        _refuse_collisions(result)
    return result


def kept_leaves(
    changes: Changes, names: Sequence[str], tensors: Mapping[str, TensorSpec]
) -> Sequence[str]:
    """The names that select and drop rules keep, in order; errors as for ``rewrites``."""
    _check_patterns(changes)
    kept = _left(changes.drop, _kept(changes.select, Names(names))).texts
    if tensors and not any(n in tensors for n in kept):
        raise PlanError(
            f"nothing is left: select and drop rules keep none of the {len(tensors)} tensors; "
            "loosen them"
        )
    return kept


def _rewrite(name: str, target: str, cast: CastRule | None) -> Rewrite:
    if cast is None:
        return Rewrite(name, target)
    return Rewrite(name, target, cast.to, cast.saturate)


def check_rules(changes: Changes) -> None:
    """Raises PlanError for patterns and dtypes that are wrong for every checkpoint."""
    _check_patterns(changes)
    refuse_unstored(changes.cast)


def _check_patterns(changes: Changes) -> None:
    counts = Counts()
    for kind in ("select", "drop"):
        for pattern in getattr(changes, kind):
            _compiled(kind, pattern, counts)
    for pattern, to in changes.rename:
        if len(to) > MAX_LENGTH:
            raise PlanError(
                f"rename {shown(pattern)}: the replacement has {len(to)} characters; shorten it to at most {MAX_LENGTH}"
            )
        _compiled("rename", pattern, counts)
    for what, to in changes.cast:
        parse_cast(what, to, counts)


def _compiled(kind: str, pattern: str, counts: Counts | None = None) -> Pattern:
    return compile_pattern(pattern, f"{kind} {shown(pattern)}", PlanError, counts)


def kept_names(select: Sequence[str], drop: Sequence[str], names: Sequence[str]) -> Sequence[str]:
    """The names that the rules keep, in order. Unlike in ``rewrites``, a rule may match none."""
    return _left(drop, _kept(select, Names(names), some=False), some=False).texts


def _kept(patterns: Sequence[str], names: Names, *, some: bool = True) -> Names:
    """The names that a pattern matches; all names if there is no pattern. ``some``: each pattern must match one."""
    return _chosen("select", patterns, names, True, some) if patterns else names


def _left(patterns: Sequence[str], names: Names, *, some: bool = True) -> Names:
    """The names that no pattern matches; ``some`` as for ``_kept``."""
    return _chosen("drop", patterns, names, False, some) if patterns else names


def _chosen(kind: str, patterns: Sequence[str], names: Names, is_found: bool, some: bool) -> Names:
    found = bytearray(len(names))
    for pattern in patterns:
        for position in _found(kind, _compiled(kind, pattern), names, some=some):
            found[position] = 1
    chosen = found if is_found else found.translate(_OPPOSITE)
    return Names(list(compress(names.texts, chosen)))


def _found(kind: str, pattern: Pattern, names: Names, *, some: bool = True) -> Sequence[int]:
    """The positions of the names that the pattern matches; PlanError if it matches none but ``some`` is set."""
    found = pattern.found(names)
    if some and not found:
        shown_names = ", ".join(names.texts[:5]) + (", …" if len(names) > 5 else "")
        raise PlanError(
            f"{kind} {shown(pattern.pattern)} matches none of the {len(names)} names it could apply to "
            f"({shown_names}){pattern_hint(pattern, names.texts)}; correct or remove it"
        )
    return found


def _renamed(rules: Sequence[tuple[str, str]], names: Names) -> dict[str, str]:
    """The new names of the leaves that a rule matches; the first rule that matches counts."""
    targets: dict[str, str] = {}
    for text, to in rules:
        pattern = _compiled("rename", text)
        found = _found("rename", pattern, names)
        replacement = _replacement(pattern, to)
        for name in (names.texts[position] for position in found):
            if name not in targets:
                targets[name] = checked_name(name, replacement.of(name))
    return targets


def _replacement(pattern: Pattern, to: str) -> Replacement:
    try:
        return pattern.replacement(to)
    except (re.error, IndexError) as error:
        raise PlanError(
            f"rename {pattern.pattern!r}={to!r}: the replacement cannot be made: {error}; "
            f"the pattern has {pattern.groups} groups"
        ) from error


def checked_name(name: str, renamed: str) -> str:
    """The new name of a leaf; PlanError if no checkpoint can hold it."""
    is_usable = _NO_NAMES.isdisjoint(renamed.split("/")) and "\0" not in renamed
    if not is_usable or len(renamed) > MAX_NAME:
        raise PlanError(
            f"{name!r} would be renamed to {shown(renamed)}, which is not a usable name; every part between slashes "
            f"must not be empty, '.' or '..', and the whole name may have {MAX_NAME} characters"
        )
    return renamed


_NO_NAMES = frozenset(("", ".", ".."))
"""Parts that are no names of files."""


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


def _casts(
    rules: Sequence[tuple[str, str]], specs: Sequence[TensorSpec], keys: Collection[str]
) -> dict[str, CastRule]:
    """The rules that change dtypes, by tensor; the first rule that applies to a tensor counts."""
    names = Names([spec.name for spec in specs])
    parsed = [parse_cast(what, to) for what, to in rules]
    found = [_about(rule, specs, names, keys) for rule in parsed]
    first: dict[str, CastRule] = {}
    for rule, ones in zip(parsed, found, strict=True):
        for spec in (specs[position] for position in ones):
            if spec.name not in first:
                _refuse_cast(rule, spec.name, spec.dtype, spec.name in keys)
                first[spec.name] = rule
    return {s.name: first[s.name] for s in specs if s.name in first and first[s.name].to != s.dtype}


def _about(
    rule: CastRule, specs: Sequence[TensorSpec], names: Names, keys: Collection[str]
) -> Sequence[int]:
    """The positions of the tensors to which the rule applies; PlanError if it applies to none."""
    if not rule.dtypes:
        return _found("cast", _compiled("cast", rule.what), names)
    found = [n for n, s in enumerate(specs) if s.dtype in rule.dtypes and s.name not in keys]
    if not found:
        dtypes = ", ".join(sorted({s.dtype for s in specs if s.name not in keys})) or "none"
        raise PlanError(
            f"{rule.text}: none of the {len(specs)} tensors is {rule.what} (their dtypes: {dtypes}; PRNG keys "
            f"are never cast); correct or remove it, or write '({rule.what})' to search the names for the word"
        )
    return found


def _refuse_cast(rule: CastRule, name: str, source: str, is_key: bool) -> None:
    """Raises PlanError for a cast that loses the meaning of a value, unless the rule names the tensor."""
    dtype, found = rule.to, f"{rule.text} {'takes' if rule.dtypes else 'matches'} {name!r}"
    if is_key:
        raise PlanError(
            f"{found}, which is a PRNG key: its bits have no numeric meaning; narrow the pattern so that it leaves "
            f"the key out{_or_all(dtype)}"
        )
    if source in PACKED:
        raise PlanError(
            f"{found} of dtype {source}, {packed_text(source)}, which is never cast; narrow the rule so that it leaves the tensor "
            f"out, or drop the tensor (drop)"
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
    """The most common remedy, for messages: a rule about one kind of dtype."""
    kind = kind_of(dtype)
    return f", or write '{kind}={dtype}' for every {kind} tensor and no other"


def _is_by_name(rule: CastRule, name: str) -> bool:
    bare = rule.what.removeprefix("^").removesuffix("$")
    return not rule.dtypes and bare in (name, re.escape(name))


RulesFrom = Literal["given", "recorded"]


class Pairing(Struct, frozen=True):
    """The pairs of tensors of A and B that are compared.

    Attributes:
        names_in_b: the name in B of each tensor of A that B should have, by A's name.
        casts: the cast of A's tensor before it is compared, by A's name.
        leaves_in_b: the same for leaves of A that are not tensors; None if they are not compared.
        dropped: tensors of A that the rules leave out.
        rules: the applied rules; None if both are compared name by name.
        rules_from: the origin of the rules: the caller, or B's record.
        warnings: reasons for which the rules that B recorded were not applied.
        damage: contradictions between B and its own record.
    """

    names_in_b: Mapping[str, str]
    leaves_in_b: Mapping[str, str] | None = None
    casts: Mapping[str, Cast] = field(default_factory=dict)
    dropped: tuple[str, ...] = ()
    rules: Changes | None = None
    rules_from: RulesFrom | None = None
    warnings: tuple[str, ...] = ()
    damage: tuple[str, ...] = ()


def made_of(tensors: Mapping[str, StoredTensor], kept: Iterable[Rewrite], changes: Changes) -> Made:
    """The record that a conversion of these tensors leaves in its target."""
    kept = list(kept)
    made = [rewrite for rewrite in kept if rewrite.source in tensors]
    leaves = {r.target: r.source for r in kept if r.source not in tensors}
    origins = {
        r.target: Origin(r.source, tensors[r.source].spec.dtype if r.dtype else None, r.saturate)
        for r in made
        if r.dtype or r.target != r.source
    }
    return Made(tree_digest(tensors), len(made), changes, origins, leaves)


def tree_digest(tensors: Mapping[str, StoredTensor]) -> str:
    """Digest of a checkpoint's tree: its names, shapes, dtypes and PRNG keys; 32 hex digits.

    Its form is part of slices.json (see ``formats.slices``).
    """
    found = hashlib.sha256()
    kinds: dict[Hashable, str] = {}
    for name in sorted(tensors):
        tensor = tensors[name]
        kind = (tensor.spec.shape, tensor.spec.dtype, tensor.is_key)
        if kind not in kinds:
            kinds[kind] = f"{list(tensor.spec.shape)} {tensor.spec.dtype} {int(tensor.is_key)}\n"
        found.update(f"{encode_basestring_ascii(name)} {kinds[kind]}".encode())
    return found.hexdigest()[:32]


def pair_by_name(a: Reader) -> Pairing:
    """Pairs every leaf with the one of the same name."""
    return Pairing(_by_name(a.tensors), _by_name(_others(a)))


def _by_name(names: Iterable[str]) -> dict[str, str]:
    return {name: name for name in names}


def _others(reader: Reader) -> list[str]:
    """The leaves that are not tensors."""
    return [leaf.name for leaf in reader.leaves if leaf.name not in reader.tensors]


def pair_by_rules(a: Reader, changes: Changes) -> Pairing:
    """Pairs every leaf of A with the leaf that a conversion by these rules makes of it.

    Raises PlanError as ``plan`` does for rules that make no sense or match nothing in A.
    """
    kept = rewrites(
        changes,
        [leaf.name for leaf in a.leaves],
        {name: tensor.spec for name, tensor in a.tensors.items()},
        {name for name, tensor in a.tensors.items() if tensor.is_key},
    )
    made = [rewrite for rewrite in kept if rewrite.source in a.tensors]
    names = {r.source: r.target for r in made}
    casts = {r.source: Cast(r.dtype, r.saturate) for r in made if r.dtype}
    dropped = tuple(name for name in a.tensors if name not in names)
    others = {r.source: r.target for r in kept if r.source not in a.tensors}
    return Pairing(names, others, casts, dropped, changes, "given")


def pair_by_record(a: Reader, b: Reader, of_a: Made | None, of_b: Made | None) -> Pairing:
    """Pairs by the rules that B recorded, if B records that it was made of A's tree; else by name.

    If both record the same origin and rules, they are compared name by name, even if A's tree equals their origin's.
    """
    if of_b is None or _alike(of_a, of_b) or tree_digest(a.tensors) != of_b.source:
        return replace(pair_by_name(a), warnings=_told_apart(a, b, of_a, of_b))
    origins = {name: _origin(name, of_b) for name in b.tensors}
    names = {origin.name: name for name, origin in origins.items()}
    casts = {
        o.name: _cast_to(b.tensors[name].spec.dtype, o) for name, o in origins.items() if o.dtype
    }
    leaves, warnings = _recorded_leaves(a, b, of_b)
    return Pairing(
        {name: names[name] for name in a.tensors if name in names},
        leaves,
        casts,
        tuple(name for name in a.tensors if name not in names),
        of_b.changes,
        "recorded",
        warnings,
        _contradictions(b, of_b, origins),
    )


def _alike(a: Made | None, b: Made) -> bool:
    return a is not None and replace(a, leaves=b.leaves) == b


def _recorded_leaves(
    a: Reader, b: Reader, made: Made
) -> tuple[Mapping[str, str] | None, tuple[str, ...]]:
    """The pairs of leaves that are not tensors, and a warning if an older record lacks them."""
    others = _others(a)
    if made.leaves is not None:
        names = {source: name for name, source in made.leaves.items()}
        return {name: names[name] for name in others if name in names}, ()
    rules = made.changes
    if not (rules.select or rules.drop or rules.rename):
        return _by_name(others), ()
    if not others and not _others(b):
        return {}, ()
    return None, (
        f"{b.uri!r} was made by an older reshard, which recorded its rules for tensors only: strings, None and empty "
        "containers are not compared, unless rules are given (select, drop, rename, cast)",
    )


def _cast_to(dtype: str, origin: Origin) -> Cast:
    """The cast that made a tensor of this dtype. A record that claims saturated integers is not obeyed."""
    return Cast(dtype, origin.saturate and kind_of(dtype) == "float")


def _origin(name: str, made: Made) -> Origin:
    return made.origins.get(name) or Origin(name)


def _contradictions(b: Reader, made: Made, origins: Mapping[str, Origin]) -> tuple[str, ...]:
    """Tensors that B records but lacks, and pairs of tensors that claim the same origin."""
    lost = [name for name in made.origins if name not in b.tensors]
    found = []
    if lost or len(b.tensors) != made.tensors:
        which = f" ({lost[0]!r} is not there)" if lost else ""
        found.append(
            f"{b.uri} has {len(b.tensors):,} tensors, but records that {made.tensors:,} were made{which}"
        )
    if len({origin.name for origin in origins.values()}) != len(origins):
        found.append(f"{b.uri} records that two of its tensors were made of the same one")
    return tuple(found)


def _told_apart(a: Reader, b: Reader, of_a: Made | None, of_b: Made | None) -> tuple[str, ...]:
    """One warning if the trees differ and the records do not help."""
    in_a, in_b = tree_digest(a.tensors), tree_digest(b.tensors)
    if in_a == in_b:
        return ()
    if of_a is not None and of_a.source == in_b:
        return (
            f"{a.uri!r} was made of a tree like that of {b.uri!r}: reshard verify {b.uri} {a.uri} compares them by "
            "the rules that made it",
        )
    if of_b is not None and (of_b.changes or of_b.origins or of_b.by is not None or of_b.computed):
        return (
            f"{b.uri!r} was made of another tree than that of {a.uri!r}, so the rules that it records do not apply; "
            "tensors are compared name by name, unless rules are given (select, drop, rename, cast)",
        )
    return ()
