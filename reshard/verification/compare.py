"""Compares checkpoints of any mesh, chunks or codec by the digests of their tensors, and by leaves that are not tensors.

Compares a checkpoint with the result of applying a map to another one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from reshard.engine.limits import Limits
from reshard.engine.progress import Progress
from reshard.engine.read_digests import digests_with_casts, tensor_digests
from reshard.errors import CorruptError, StorageError
from reshard.formats.base import Reader
from reshard.formats.contents import Leaf, StoredTensor
from reshard.formats.registry import holds_only_tensors
from reshard.geometry.dtypes import PACKED
from reshard.geometry.grid import Grid
from reshard.layout.changes import Cast, Changes, kind_of
from reshard.maps.given_map import GivenMap
from reshard.maps.make import in_parts, make_tensors
from reshard.maps.mapped import Mapped, MappedTensor
from reshard.maps.mapped_checkpoint import mapped_tensors, unequal
from reshard.planning.rules import Pairing, RulesFrom, pair_by_name
from reshard.verification.reports import (
    AppliedRules,
    Comparison,
    LeafDiff,
    LeafStatus,
    Status,
    TensorVerdict,
    Verification,
    no_place_warnings,
)


def compare_stored(
    a: Reader,
    b: Reader,
    limits: Limits,
    progress: Callable[[Progress], None] | None = None,
    pairing: Pairing | None = None,
) -> Verification:
    """Reads two checkpoints and compares them tensor by tensor: name, shape, dtype, and every bit; and their other
    leaves.

    Args:
        pairing: the tensors to compare, and their casts; None for leaves of the same name.
    """
    pairing = pair_by_name(a) if pairing is None else pairing
    leaves = _other_leaves(a, b, pairing)
    found = _read(a, b, pairing, limits, progress)
    return Verification(
        a.uri,
        b.uri,
        tuple(_verdicts(a, b, pairing, found, leaves)),
        damage=pairing.damage,
        warnings=(*pairing.warnings, *no_place_warnings(a.uri, b.uri, leaves)),
        dropped=pairing.dropped,
        rules=AppliedRules.of(pairing.rules, pairing.rules_from),
        leaves=leaves,
    )


def _other_leaves(a: Reader, b: Reader, pairing: Pairing) -> tuple[LeafDiff, ...]:
    if pairing.leaves_in_b is None:
        return ()
    in_b = AllLeaves.of(b)
    names = {**pairing.names_in_b, **pairing.leaves_in_b}
    return tuple(compare_others(AllLeaves.of(a), in_b, names, in_b.leaves))


class _Digests(Struct, frozen=True):
    """The digests of both checkpoints, by A's names; ``in_b`` is by B's.

    Attributes:
        unlike: the difference of a pair that is known before reading; "" for none.
        in_a: digests, after the cast if there is one.
        damaged: the errors of reading.
    """

    unlike: Mapping[str, str]
    in_a: Mapping[str, str]
    in_b: Mapping[str, str]
    damaged: Mapping[str, str]


def _read(
    a: Reader,
    b: Reader,
    pairing: Pairing,
    limits: Limits,
    progress: Callable[[Progress], None] | None,
) -> _Digests:
    """Reads the pairs whose shapes and dtypes agree."""
    pairs = {n: partner for n, partner in pairing.names_in_b.items() if partner in b.tensors}
    unlike = {
        n: _unlike(a.tensors[n], b.tensors[m], pairing.casts.get(n)) for n, m in pairs.items()
    }
    names = {m: n for n, m in pairs.items() if not unlike[n]}
    alike = set(names.values())
    casts = {n: cast for n, cast in pairing.casts.items() if n in alike}
    a_damage: dict[str, str] = {}
    b_damage: dict[str, str] = {}
    in_a = digests_with_casts(a, limits, alike, casts, progress, damage=a_damage, stage="reading")
    in_b = tensor_digests(b, limits, names, progress, damage=b_damage, stage="reading")
    a_damage = {**_not_as_recorded(a, in_a.stored), **a_damage}
    b_damage = {**_not_as_recorded(b, in_b), **b_damage}
    damaged = {names[n]: f"B: {text}" for n, text in b_damage.items()}
    damaged |= {n: f"A: {text}" for n, text in a_damage.items()}
    return _Digests(unlike, {**in_a.stored, **in_a.cast}, in_b, damaged)


def _not_as_recorded(reader: Reader, found: Mapping[str, str]) -> dict[str, str]:
    return {
        name: f"{_CHANGED} ({reader.tensors[name].digest})"
        for name, digest in found.items()
        if reader.tensors[name].digest not in (None, digest)
    }


def _verdicts(
    a: Reader, b: Reader, pairing: Pairing, found: _Digests, leaves: Sequence[LeafDiff]
) -> Iterator[TensorVerdict]:
    """The verdicts of all tensors, except for names at which the other side has another leaf."""
    as_leaves = {leaf.source for leaf in leaves}
    for name, partner in pairing.names_in_b.items():
        if name in as_leaves:
            continue
        if partner not in b.tensors:
            yield TensorVerdict(
                name, "only in A", None, None, f"B has no tensor {partner!r}", source=name
            )
        else:
            yield _verdict(a, b, name, partner, pairing.casts.get(name), found)
    expected = {*pairing.names_in_b.values(), *(x.name for x in leaves if x.b is not None)}
    for name in b.tensors:
        if name not in expected:
            yield TensorVerdict(name, "only in B", None, None, _no_partner(name, a, pairing))


def _no_partner(name: str, a: Reader, pairing: Pairing) -> str:
    if name in pairing.dropped:
        return f"the rules leave out {name!r} of A"
    if name in a.tensors:
        return f"the rules give {name!r} of A another name"
    return f"A has no tensor {name!r}"


def _verdict(
    a: Reader, b: Reader, name: str, partner: str, cast: Cast | None, found: _Digests
) -> TensorVerdict:
    digests = found.in_a.get(name), found.in_b.get(partner)
    status: Status = "equal"
    detail = ""
    if detail := found.unlike[name]:
        status = "different"
    elif detail := found.damaged.get(name, ""):
        status = "damaged"
    elif digests[0] != digests[1]:
        status = "different"
        detail = "the stored bits differ" if cast is None else _OTHER_CAST
    return TensorVerdict(
        partner,
        status,
        *digests,
        detail,
        source=name,
        comparison="exact" if cast is None else "cast",
        source_dtype=a.tensors[name].spec.dtype,
        target_dtype=b.tensors[partner].spec.dtype,
        saturate=cast is not None and cast.saturate,
    )


_OTHER_CAST = "the stored bits differ from the result of the cast"


def _unlike(a: StoredTensor, b: StoredTensor, cast: Cast | None) -> str:
    """The difference of two tensors that is known before reading; "" for none."""
    if a.spec.shape != b.spec.shape:
        return f"shape {list(a.spec.shape)} in A, {list(b.spec.shape)} in B"
    if a.is_key != b.is_key:
        return f"a PRNG key in {'A' if a.is_key else 'B'} only"
    if cast is None:
        same = a.spec.dtype == b.spec.dtype
        return "" if same else f"dtype {a.spec.dtype} in A, {b.spec.dtype} in B"
    if (
        a.is_key
        or a.spec.dtype in PACKED
        or (kind_of(a.spec.dtype) == "complex" != kind_of(cast.dtype))
    ):
        return f"{a.spec.dtype} in A cannot be cast to {cast.dtype}"
    same = cast.dtype == b.spec.dtype
    return "" if same else f"dtype {a.spec.dtype} in A, cast to {cast.dtype}, {b.spec.dtype} in B"


def compare_recorded(
    a: Reader, limits: Limits, progress: Callable[[Progress], None] | None = None
) -> Verification:
    """Reads a checkpoint and compares it with the digests in its record."""
    damage: dict[str, str] = {}
    stored = tensor_digests(a, limits, None, progress, damage=damage, stage="reading")
    if computed := [n for n, t in a.tensors.items() if t.encoding.compressor == "computed"]:
        damage |= _operand_damage(a, computed, limits)
    return Verification(
        a.uri,
        None,
        tuple(
            TensorVerdict(n, "damaged", None, t.digest, damage[n])
            if n in damage
            else _recorded(
                n, stored[n], t, has_crcs=t.crcs is not None or bool(a.recorded_ranges(n))
            )
            for n, t in a.tensors.items()
        ),
    )


def _operand_damage(a: Reader, computed: Sequence[str], limits: Limits) -> dict[str, str]:
    """Those of the computed tensors of which an operand has another digest than is recorded, each with the first such operand."""
    from reshard.formats.computed.tensors import recorded_operands

    damage: dict[tuple[int, str], str] = {}
    for holder, names in recorded_operands(a, computed):
        own: dict[str, str] = {}
        found = tensor_digests(holder, limits, names, damage=own)
        for name, digest in found.items():
            if (recorded := holder.tensors[name].digest) not in (None, digest):
                own[name] = (
                    f"{name!r}, of which it is made, has the digest {digest}, but {recorded} was recorded when it was written"
                )
        damage |= {(id(holder), name): text for name, text in own.items()}
    made_of = {
        name: [(id(holder), each) for holder, own in recorded_operands(a, [name]) for each in own]
        for name in (computed if damage else ())
    }
    return {
        name: next(damage[each] for each in operands if each in damage)
        for name, operands in made_of.items()
        if not damage.keys().isdisjoint(operands)
    }


_CHANGED = "the stored bits differ from those recorded when it was written"


def _recorded(name: str, stored: str, tensor: StoredTensor, *, has_crcs: bool) -> TensorVerdict:
    if tensor.digest is not None:
        status: Status = "recorded" if stored == tensor.digest else "different"
        detail = "" if stored == tensor.digest else _CHANGED
        return TensorVerdict(name, status, stored, tensor.digest, detail)
    if tensor.encoding.checksum:
        return TensorVerdict(name, "checksum", stored, None, "each chunk has its own CRC32C")
    if tensor.is_checked:
        detail = "the checksums of what it is made of were compared"
        return TensorVerdict(name, "checksum", stored, None, detail)
    if has_crcs:
        return TensorVerdict(
            name, "checksum", stored, None, "its bytes have the CRC that its format records"
        )
    return TensorVerdict(
        name, "not recorded", stored, None, "no digest was recorded when it was written"
    )


class AllLeaves(Struct, frozen=True):
    """Every leaf of a checkpoint by name, tensors included.

    Attributes:
        only_tensors: True if the format has no place for other leaves.
    """

    tensors: Mapping[str, StoredTensor]
    leaves: Mapping[str, Leaf]
    only_tensors: bool

    @classmethod
    def of(cls, reader: Reader) -> AllLeaves:
        leaves = {leaf.name: leaf for leaf in reader.leaves}
        return cls(reader.tensors, leaves, holds_only_tensors(reader))

    def is_other(self, name: str | None) -> bool:
        """True if there is a leaf of this name that is not a tensor."""
        return name in self.leaves and name not in self.tensors

    def what(self, name: str | None) -> str | None:
        """A description of the leaf; None if there is none."""
        if name is None or name not in self.leaves:
            return None
        if name in self.tensors:
            spec = self.tensors[name].spec
            return f"{spec.dtype} of shape {list(spec.shape)}"
        leaf = self.leaves[name]
        if leaf.is_object:
            return f"{leaf.kind} ({leaf.meta['digest']})"
        return repr(leaf.text) if leaf.text is not None else leaf.value_type or "empty"


def compare_others(
    a: AllLeaves, b: AllLeaves, names_in_b: Mapping[str, str], names: Iterable[str]
) -> Iterator[LeafDiff]:
    """The leaves that are not a tensor on at least one side: those of A in its order, then those that only B has.

    Args:
        names_in_b: the name in B of each leaf of A that B should have, tensors included.
        names: names of the leaves of B to compare.
    """
    for name, partner in names_in_b.items():
        if a.is_other(name) or b.is_other(partner):
            yield _compared(a, b, name, partner)
    expected = set(names_in_b.values())
    for name in names:
        if b.is_other(name) and name not in expected:
            yield _compared(a, b, None, name)


def _compared(a: AllLeaves, b: AllLeaves, name: str | None, partner: str) -> LeafDiff:
    one, other = a.what(name), b.what(partner)
    if one is None:
        return LeafDiff(partner, "no place in A" if a.only_tensors else "only in B", one, other)
    if other is None:
        status: LeafStatus = "no place in B" if b.only_tensors else "only in A"
        return LeafDiff(name or partner, status, one, other, name)
    return LeafDiff(partner, "equal" if one == other else "different", one, other, name)


def compare_mapped(
    a: Reader,
    b: Reader,
    given: GivenMap,
    changes: Changes,
    limits: Limits,
    progress: Callable[[Progress], None] | None,
    map_from: RulesFrom,
) -> Verification:
    """Compares each tensor of B with the map's result for A, and tied tensors of A with each other.

    Raises PlanError if the map does not fit A.
    """
    mapping, dropped = mapped_tensors(a, given, changes)
    damage: dict[str, str] = {}
    alike = {
        m.spec.name for m in mapping.tensors if m.spec.name in b.tensors and not _unlike_made(m, b)
    }
    in_b = tensor_digests(b, limits, alike, progress, damage=damage, stage="reading")
    unreadable: tuple[str, ...] = ()
    found = _MadeDigests({}, {})
    try:
        found = _made_digests(a, mapping, limits, progress)
        unreadable = tuple(_changed(a, found.sources))
    except (CorruptError, StorageError) as error:
        unreadable = (f"A: {error}",)
    return Verification(
        a.uri,
        b.uri,
        tuple(_verdicts_of_made(b, mapping, found.made, in_b, damage)),
        damage=(*unreadable, *_untied(a, mapping, found.sources, limits)),
        dropped=dropped,
        rules=AppliedRules.of(changes, "given" if changes and map_from == "given" else None),
        map=map_from,
        is_by_rules=bool(changes),
    )


class _MadeDigests(Struct, frozen=True):
    """Digests of a map's results and of their sources, 16 hex digits.

    Attributes:
        sources: of the tensors that the map takes whole and once, by name.
    """

    made: Mapping[str, str]
    sources: Mapping[str, str]


def _made_digests(
    reader: Reader,
    mapping: Mapped,
    limits: Limits,
    progress: Callable[[Progress], None] | None,
) -> _MadeDigests:
    """Reads the source once, as far as the memory allows, and computes the digest of each tensor that the map makes.

    Nothing is written. Raises the errors of ``make_tensors``.
    """
    tensors = [
        replace(made, spec=in_parts(made.spec, Grid.whole(made.spec.shape)))
        for made in mapping.tensors
    ]
    books = make_tensors(reader, tensors, limits, progress=progress).books
    found = zip([made.spec.name for made in tensors], books.results(), strict=True)
    return _MadeDigests(
        {name: result.target_digest or "" for name, result in found},
        {name: digest for (_, name), digest in books.source_digests().items()},
    )


def _unlike_made(made: MappedTensor, b: Reader) -> str:
    """The difference of a tensor of B that is known before reading; "" for none."""
    expected, spec = made.spec, b.tensors[made.spec.name].spec
    if expected.shape != spec.shape:
        return f"the map makes shape {list(expected.shape)}, B has {list(spec.shape)}"
    if expected.dtype != spec.dtype:
        return f"the map makes {expected.dtype}, B has {spec.dtype}"
    return ""


def _changed(a: Reader, seen: Mapping[str, str]) -> Iterator[str]:
    """Tensors of A whose bytes differ from A's record."""
    for name, digest in seen.items():
        recorded = a.tensors[name].digest
        if recorded not in (None, digest):
            yield f"A: {name!r} has digest {digest}, but {recorded} was recorded when it was written"


def _untied(a: Reader, mapping: Mapped, seen: Mapping[str, str], limits: Limits) -> Iterator[str]:
    """Pairs of tensors of A that must be equal and are not."""
    for first, second in unequal(a, mapping.equal, seen, limits):
        yield f"A: the map says that {first!r} equals {second!r} (same_as), but their digests differ"


def _verdicts_of_made(
    b: Reader,
    mapping: Mapped,
    made: Mapping[str, str],
    in_b: Mapping[str, str],
    damage: Mapping[str, str],
) -> Iterator[TensorVerdict]:
    expected = set()
    for tensor in mapping.tensors:
        expected.add(tensor.spec.name)
        yield _verdict_of_made(tensor, b, made, in_b, damage)
    for name in b.tensors:
        if name not in expected:
            yield TensorVerdict(name, "only in B", None, None, f"the map makes no {name!r}")


def _verdict_of_made(
    tensor: MappedTensor,
    b: Reader,
    made: Mapping[str, str],
    in_b: Mapping[str, str],
    damage: Mapping[str, str],
) -> TensorVerdict:
    name = tensor.spec.name
    source = tensor.sources[0] if tensor.sources else None
    if name not in b.tensors:
        return TensorVerdict(name, "only in A", None, None, f"B has no tensor {name!r}", source)
    dtypes = tensor.pieces[0].source_dtype, b.tensors[name].spec.dtype
    more = (source, _comparison(tensor), *dtypes)
    unlike = _unlike_made(tensor, b)
    if unlike:
        return TensorVerdict(name, "different", None, None, unlike, *more)
    if name in damage:
        return TensorVerdict(name, "damaged", made.get(name), None, f"B: {damage[name]}", *more)
    if name not in made:
        return TensorVerdict(name, "damaged", None, in_b.get(name), "A cannot be read", *more)
    if made[name] != in_b[name]:
        detail = "the stored bits differ from what the map makes"
        return TensorVerdict(name, "different", made[name], in_b[name], detail, *more)
    return TensorVerdict(name, "equal", made[name], in_b[name], "", *more)


def _comparison(tensor: MappedTensor) -> Comparison:
    if any(piece.arithmetic is not None for piece in tensor.pieces):
        return "computed"
    return "cast" if any(piece.is_cast for piece in tensor.pieces) else "exact"
