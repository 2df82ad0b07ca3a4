"""Compares checkpoints by the digests of their tensors, whatever their mesh, chunks or codec."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Literal

from msgspec import Struct, field

from reshard.documents.comparisons import (
    VerificationAnswer,
    VerifiedFile,
    VerifiedLeaf,
    VerifiedRules,
    VerifiedTensor,
)
from reshard.documents.shared import document_of
from reshard.engine.limits import Limits
from reshard.engine.progress import Progress
from reshard.engine.read_digests import digests_with_casts, tensor_digests
from reshard.formats.base import Reader
from reshard.formats.contents import StoredTensor
from reshard.formats.slices.file_verdict import FileVerdict
from reshard.geometry.dtypes import PACKED
from reshard.layout.changes import Cast, Changes, kind_of
from reshard.planning.pairing import Pairing, RulesFrom, pair_by_name
from reshard.record import Record, counted, several, warned
from reshard.verification.diff_report import LeafDiff, no_place_warnings
from reshard.verification.other_leaves import AllLeaves, compare_others

Status = Literal[
    "equal",
    "different",
    "damaged",
    "only in A",
    "only in B",
    "recorded",
    "checksum",
    "not recorded",
]

AGREEING: frozenset[Status] = frozenset({"equal", "recorded", "checksum"})


class TensorVerdict(Record, frozen=True):
    """The result of comparing one tensor.

    Attributes:
        name: in B; in A for a tensor that only A has.
        status: "recorded" if the stored bytes have the digest that was recorded when they were written; "checksum" if
            none was recorded, but every chunk matches the CRC32C stored with it; "not recorded" if there is nothing to
            compare with; "damaged" if stored bytes cannot be read, or differ from their record.
        digest_a: CRC-64/NVME of the bytes in A, after the cast if B was cast; 16 hex digits.
        digest_b: the same of the bytes in B; without B, the digest that A recorded.
        detail: what differs, in words.
        source: the name in A; None for a tensor that only B has, and if there is no B.
        comparison: "cast" if A's tensor was cast from ``source_dtype`` to ``target_dtype`` and every bit of the result
            was compared with B; "exact" if every stored bit was compared.
        source_dtype: the dtype in A, for tensors that both have.
        target_dtype: the dtype in B.
        saturate: whether the cast clipped values to the largest finite one.
    """

    name: str
    status: Status
    digest_a: str | None
    digest_b: str | None
    detail: str = ""
    source: str | None = None
    comparison: Literal["exact", "cast"] = "exact"
    source_dtype: str | None = None
    target_dtype: str | None = None
    saturate: bool = False

    def __repr__(self) -> str:
        name = self.name if self.source in (None, self.name) else f"{self.source} → {self.name}"
        detail = f", {self.detail}" if self.detail else ""
        return f"TensorVerdict({name!r}: {self.status}{detail})"

    @property
    def is_difference(self) -> bool:
        """Whether the verdict counts as a difference."""
        return self.status in ("different", "damaged", "only in A", "only in B")


class Verification(Record, frozen=True):
    """The result of comparing two checkpoints, or one with its record.

    Attributes:
        files: every file that was compared with a record, of A and of B.
        damage: why a checkpoint with a record of itself could not be read; empty if it could.
        warnings: one sentence each.
        dropped: tensors of A that the rules leave out of B; they do not count as differences.
        rules: the rules by which B was made of A; None if tensors were compared name by name.
        rules_from: whether the caller gave the rules or B recorded them.
        leaves: leaves that are not a tensor on both sides: strings, None and empty containers. Empty without B: files
            hold them, and are compared with their record.
        missing_chunks: of "A" and of "B", how many chunks of each tensor are not stored and were read as fill values.
    """

    a: str
    b: str | None
    tensors: tuple[TensorVerdict, ...]
    files: tuple[FileVerdict, ...] = ()
    damage: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    dropped: tuple[str, ...] = ()
    rules: Changes | None = None
    rules_from: RulesFrom | None = None
    leaves: tuple[LeafDiff, ...] = ()
    missing_chunks: Mapping[str, Mapping[str, int]] = field(default_factory=dict)

    def __repr__(self) -> str:
        tensors, files = counted(len(self.tensors), "tensor"), counted(len(self.files), "file")
        same = "equal" if self.b is not None else "as recorded"
        verdict = f"{self.differences:,} differ" if self.differences else same
        if not self.is_compared:
            verdict = "nothing was recorded to compare with"
        against = "its own record" if self.b is None else repr(self.b)
        unlike = [
            *(t for t in self.tensors if t.is_difference),
            *(x for x in self.leaves if x.is_difference),
            *(f for f in self.files if f.is_difference),
        ]
        headline = f"{self.a!r} against {against}: {tensors}, {files}, {verdict}"
        return several("Verification", headline, unlike, [*self.damage, *warned(self.warnings)])

    def _document(self) -> VerificationAnswer:
        agree = all(tensor.status in AGREEING for tensor in self.tensors)
        return VerificationAnswer(
            a=self.a,
            b=self.b,
            equal=agree and not self.differences,
            differences=self.differences,
            damage=self.damage,
            warnings=self.warnings,
            rules=self._rules,
            dropped=self.dropped,
            missing_chunks={s: self.missing_chunks.get(s, {}) for s in ("A", "B")},
            files=tuple(document_of(file, VerifiedFile) for file in self.files),
            tensors=tuple(document_of(tensor, VerifiedTensor) for tensor in self.tensors),
            leaves=tuple(document_of(leaf, VerifiedLeaf) for leaf in self.leaves),
        )

    @property
    def _rules(self) -> VerifiedRules | None:
        if self.rules is None or self.rules_from is None:
            return None
        return document_of(self.rules, VerifiedRules, from_=self.rules_from)

    @property
    def differences(self) -> int:
        """Tensors, other leaves and files that differ, and checkpoints that cannot be read."""
        tensors = sum(v.is_difference for v in self.tensors)
        leaves = sum(x.is_difference for x in self.leaves)
        return tensors + leaves + sum(f.is_difference for f in self.files) + len(self.damage)

    @property
    def is_compared(self) -> bool:
        """Whether there was anything to compare with."""
        compared = any(t.status != "not recorded" for t in self.tensors)
        return compared or bool(self.differences) or not self.tensors


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
        pairing: which tensors to compare, and which of them after a cast; None for leaves of the same name.
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
        rules=pairing.rules,
        rules_from=pairing.rules_from,
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
        unlike: how a pair differs before it is read; "" if it does not.
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
    """The verdicts of all tensors but those of which the other side has another leaf."""
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
    """How two tensors differ before a byte is read; "" if they do not."""
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
    return Verification(
        a.uri,
        None,
        tuple(
            TensorVerdict(n, "damaged", None, t.digest, damage[n])
            if n in damage
            else _recorded(n, stored[n], t)
            for n, t in a.tensors.items()
        ),
    )


_CHANGED = "the stored bits differ from those recorded when it was written"


def _recorded(name: str, stored: str, tensor: StoredTensor) -> TensorVerdict:
    if tensor.digest is not None:
        status: Status = "recorded" if stored == tensor.digest else "different"
        detail = "" if stored == tensor.digest else _CHANGED
        return TensorVerdict(name, status, stored, tensor.digest, detail)
    if tensor.encoding.checksum:
        return TensorVerdict(name, "checksum", stored, None, "each chunk has its own CRC32C")
    return TensorVerdict(
        name, "not recorded", stored, None, "no digest was recorded when it was written"
    )
