"""Pairs the tensors of A with those of B, by name or by the rules that made B of A."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from typing import Literal

from msgspec import Struct, field
from msgspec.structs import replace

from reshard.formats.base import Made, Origin, Reader
from reshard.formats.contents import StoredTensor
from reshard.layout.changes import Cast, Changes, kind_of
from reshard.planning.rules import Rewrite, rewrites

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
    for name in sorted(tensors):
        tensor = tensors[name]
        spec = tensor.spec
        line = f"{json.dumps(name)} {list(spec.shape)} {spec.dtype} {int(tensor.is_key)}\n"
        found.update(line.encode())
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
    if of_b is not None and (of_b.changes or of_b.origins or of_b.by is not None):
        return (
            f"{b.uri!r} was made of another tree than that of {a.uri!r}, so the rules that it records do not apply; "
            "tensors are compared name by name, unless rules are given (select, drop, rename, cast)",
        )
    return ()
