"""Compares a checkpoint with the result of applying a map to another one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from msgspec import Struct
from msgspec.structs import replace

from reshard.engine.limits import Limits
from reshard.engine.progress import Progress
from reshard.engine.read_digests import tensor_digests
from reshard.errors import CorruptError, StorageError
from reshard.formats.base import Reader
from reshard.geometry.grid import Grid
from reshard.layout.changes import Changes
from reshard.maps.given_map import GivenMap
from reshard.maps.make import in_parts, make_tensors
from reshard.maps.mapped import Mapped, MappedTensor
from reshard.maps.mapped_checkpoint import mapped_tensors, unequal
from reshard.planning.rules import RulesFrom
from reshard.verification.verify_report import AppliedRules, Comparison, TensorVerdict, Verification


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
    alike = {m.spec.name for m in mapping.tensors if m.spec.name in b.tensors and not _unlike(m, b)}
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
        tuple(_verdicts(b, mapping, found.made, in_b, damage)),
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
    tensors = [_in_chunks(made) for made in mapping.tensors]
    books = make_tensors(reader, tensors, limits, progress=progress).books
    found = zip([made.spec.name for made in tensors], books.results(), strict=True)
    return _MadeDigests(
        {name: result.target_digest or "" for name, result in found},
        {name: digest for (_, name), digest in books.source_digests().items()},
    )


def _in_chunks(made: MappedTensor) -> MappedTensor:
    return replace(made, spec=in_parts(made.spec, Grid.whole(made.spec.shape)))


def _unlike(made: MappedTensor, b: Reader) -> str:
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


def _verdicts(
    b: Reader,
    mapping: Mapped,
    made: Mapping[str, str],
    in_b: Mapping[str, str],
    damage: Mapping[str, str],
) -> Iterator[TensorVerdict]:
    expected = set()
    for tensor in mapping.tensors:
        expected.add(tensor.spec.name)
        yield _verdict(tensor, b, made, in_b, damage)
    for name in b.tensors:
        if name not in expected:
            yield TensorVerdict(name, "only in B", None, None, f"the map makes no {name!r}")


def _verdict(
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
    unlike = _unlike(tensor, b)
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
