"""The report of ``diff``: the differences of each tensor and leaf, and their sizes.

Verification: the result of comparing two checkpoints, or one with its record; TensorVerdict: that of one tensor.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, ClassVar, Literal

from msgspec import Meta, field

from reshard.answers.record import Json, Record, counted, several, warned
from reshard.answers.shared import Digest, MissingNumbers
from reshard.formats.slices.file_digests import FileVerdict
from reshard.layout.changes import Changes
from reshard.planning.rules import RulesFrom
from reshard.verification.elements import ComparedAs

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
Comparison = Literal["exact", "cast", "computed"]

AGREEING: frozenset[Status] = frozenset({"equal", "recorded", "checksum"})


class TensorVerdict(Record, frozen=True):
    """The comparison of one tensor.

    Attributes:
        name: in B; in A for a tensor that only A has.
        status: "recorded" if the stored bytes have the digest that was recorded when they were written; "checksum" if
            none was recorded, but the CRCs that the format stores with its chunks or pieces match; "not recorded" if there is nothing to
            compare with; "damaged" if stored bytes cannot be read, or differ from their record.
        digest_a: CRC-64/NVME of the bytes in A, after the cast if B was cast; 16 hex digits.
        digest_b: the same of the bytes in B; without B, the digest that A recorded.
        detail: the difference, in words.
        source: the name in A; None for a tensor that only B has, and if there is no B.
        comparison: "cast" if A's tensor was cast from ``source_dtype`` to ``target_dtype`` and every bit of the result
            was compared with B; "computed" if a map has arithmetic for it; "exact" if every stored bit was compared.
        source_dtype: the dtype in A, for tensors that both have.
        target_dtype: the dtype in B.
        saturate: True if the cast clipped values to the largest finite one.
    """

    name: str
    status: Status
    digest_a: Digest | None
    digest_b: Digest | None
    detail: str = ""
    source: str | None = None
    comparison: Comparison = "exact"
    source_dtype: str | None = None
    target_dtype: str | None = None
    saturate: bool = False

    def __repr__(self) -> str:
        name = self.name if self.source in (None, self.name) else f"{self.source} → {self.name}"
        detail = f", {self.detail}" if self.detail else ""
        return f"TensorVerdict({name!r}: {self.status}{detail})"

    @property
    def is_difference(self) -> bool:
        """True if the verdict counts as a difference."""
        return self.status in ("different", "damaged", "only in A", "only in B")


class IdentityVerdict(Record, frozen=True):
    """The root of the weights beside the one that was expected.

    Attributes:
        expected: the given or signed root, or the one that a file records.
        recorded_in: None if the root was given or signed.
        name, version, signed_at: "" for a fact that the signed statement lacks.
    """

    JSON: ClassVar[Json] = Json(left_out=("recorded_in", "name", "version", "signed_at"))

    root: Annotated[
        str | None,
        Meta(
            description="Of the weights, computed anew, 64 hex digits; null where they cannot be read."
        ),
    ]
    expected: str
    signer: Annotated[
        str | None,
        Meta(description="Id of the key that signed the expected root; null without one."),
    ] = None
    recorded_in: Annotated[
        str | None,
        Meta(description="The file that records the expected root, where it was not given itself."),
    ] = None
    name: Annotated[str, Meta(description="Of the model, where the signature says it.")] = ""
    version: Annotated[str, Meta(description="Of the model, likewise.")] = ""
    signed_at: Annotated[str, Meta(description="When it was signed, likewise.")] = ""

    @property
    def is_difference(self) -> bool:
        """True if the weights have another root."""
        return self.root != self.expected

    def __repr__(self) -> str:
        verdict = f"not {self.expected}" if self.is_difference else "as expected"
        signed = f", signed by {self.signer[:16]}…" if self.signer else ""
        return f"IdentityVerdict({self.root}: {verdict}{signed})"


class ReceiptVerdict(Record, frozen=True):
    """The roots of both checkpoints beside those that a receipt names."""

    source: Annotated[
        str | None,
        Meta(description="Root of A, computed anew; null where it cannot be computed."),
    ]
    expected_source: str
    target: Annotated[str | None, Meta(description="The same of B.")]
    expected_target: str
    reshard: Annotated[str, Meta(description="Version that wrote the receipt.")]

    @property
    def differences(self) -> tuple[str, ...]:
        """A sentence for each root that is not the receipt's."""
        sides = (("A", self.source, self.expected_source), ("B", self.target, self.expected_target))
        return tuple(
            f"{side} has the root {found}, but the receipt names {expected}"
            for side, found, expected in sides
            if found not in (None, expected)
        )

    def __repr__(self) -> str:
        return f"ReceiptVerdict({'; '.join(self.differences) or 'both roots are as it names them'})"


class AppliedRules(Changes, frozen=True, kw_only=True):
    """The rules by which B was made from A.

    Attributes:
        from_: the caller gave them, or B records them.
    """

    JSON: ClassVar[Json] = Json(("from_", "select", "drop", "rename", "cast"))

    from_: Literal["recorded", "given"] = field(name="from")

    @classmethod
    def of(cls, rules: Changes | None, from_: RulesFrom | None) -> AppliedRules | None:
        """The rules with their origin; None without either."""
        if rules is None or from_ is None:
            return None
        return cls(rules.select, rules.drop, rules.rename, rules.cast, from_=from_)


class Verification(Record, frozen=True):
    """The result of comparing two checkpoints, or one with its record.

    Attributes:
        files: every file that was compared with a record, of A and of B.
        damage: the reasons why a checkpoint with a record of itself could not be read; empty if it could.
        warnings: one sentence each.
        dropped: they do not count as differences.
        leaves: empty without B: files hold them, and are compared with their record.
        map: None without a map.
        receipt: ``rules`` are its rules.
        identity: ``tensors`` are compared with the identity of the expected root, if it is at hand.
        missing_chunks: the number of chunks by the name of each tensor of "A" and of "B"; they were read as fill values.
        is_by_rules: true if the map that B records was applied with rules.
    """

    JSON: ClassVar[Json] = Json(
        (
            "a", "b", "equal", "differences", "damage", "warnings", "rules", "dropped", "missing_chunks", "files", "tensors",
            "leaves", "map", "identity", "receipt",
        ),
        left_out=("map", "identity", "receipt"),
        later=("warnings", "rules", "dropped", "missing_chunks", "leaves"),
    )  # fmt: skip

    a: str
    b: str | None
    tensors: tuple[TensorVerdict, ...]
    files: tuple[FileVerdict, ...] = ()
    damage: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    dropped: Annotated[
        tuple[str, ...], Meta(description="Tensors of A that the rules leave out of B.")
    ] = ()
    rules: Annotated[
        AppliedRules | None,
        Meta(
            description="The rules by which B was made from A; null if tensors are compared by name."
        ),
    ] = None
    leaves: Annotated[
        tuple[LeafDiff, ...],
        Meta(
            description="Leaves that are not a tensor on both sides: strings, None, empty containers."
        ),
    ] = ()
    missing_chunks: Annotated[
        Mapping[str, MissingNumbers],
        Meta(description="Of A and of B, the chunks that are not stored."),
    ] = field(default_factory=lambda: {"A": {}, "B": {}})
    map: Annotated[
        RulesFrom | None,
        Meta(description="Of a comparison with what a map makes of A: whose map it is."),
    ] = None
    identity: Annotated[
        IdentityVerdict | None,
        Meta(description="Of a comparison with a root: both roots, and who signed."),
    ] = None
    receipt: Annotated[
        ReceiptVerdict | None,
        Meta(description="Of a comparison by a receipt: both roots, and those that it names."),
    ] = None
    is_by_rules: bool = False

    def __repr__(self) -> str:
        tensors, files = counted(len(self.tensors), "tensor"), counted(len(self.files), "file")
        same = "equal" if self.b is not None else "as recorded"
        verdict = f"{self.differences:,} differ" if self.differences else same
        if not self.is_compared:
            verdict = "nothing was recorded to compare with"
        against = "its own record" if self.b is None else repr(self.b)
        if self.identity is not None:
            against, verdict = "an identity", str(self.identity)
        unlike = [
            *(t for t in self.tensors if t.is_difference),
            *(x for x in self.leaves if x.is_difference),
            *(f for f in self.files if f.is_difference),
        ]
        headline = f"{self.a!r} against {against}: {tensors}, {files}, {verdict}"
        return several("Verification", headline, unlike, [*self.damage, *warned(self.warnings)])

    @property
    def equal(self) -> bool:
        """True if everything was compared, and agrees."""
        agree = self.identity is not None or all(t.status in AGREEING for t in self.tensors)
        return agree and not self.differences

    @property
    def differences(self) -> int:
        """The number of differences: tensors, other leaves, files, roots of a receipt, and unreadable checkpoints.

        At least one for weights with another root than the expected one.
        """
        tensors = sum(v.is_difference for v in self.tensors)
        if self.identity is not None and self.identity.is_difference:
            tensors = max(1, tensors)
        leaves = sum(x.is_difference for x in self.leaves)
        files = sum(f.is_difference for f in self.files)
        roots = 0 if self.receipt is None else len(self.receipt.differences)
        return tensors + leaves + files + len(self.damage) + roots

    @property
    def is_compared(self) -> bool:
        """True if there was anything to compare with."""
        compared = self.identity is not None or any(
            t.status != "not recorded" for t in self.tensors
        )
        return compared or bool(self.differences) or not self.tensors


DiffStatus = Literal["equal", "different", "only in A", "only in B"]

LeafStatus = Literal[DiffStatus, "no place in A", "no place in B"]


class TensorDiff(Record, frozen=True):
    """The difference between a tensor of A and that of B.

    ``elements`` and the attributes after it are None if elements were not compared: a tensor is missing,
    the shapes differ, or only one tensor is a PRNG key.

    Attributes:
        status: "equal" if names, shapes, dtypes and all bits are equal.
        shape_a, shape_b, dtype_a, dtype_b: None if the tensor is missing.
        detail: a difference other than in elements, in words.
        compared_as: the type in which values are compared; it represents both dtypes exactly: "bits" for
            PRNG keys, "integers" (of any size), "float64" or "complex128".
        elements: the number of elements that differ: in their bits if the dtypes are equal, else in their values.
        nonfinite: the number of differing elements that are NaN or infinite in A or in B.
        nans_a, nans_b, infinities_a, infinities_b: the numbers of elements that are NaN, or infinite.
        largest: the largest ``|a - b|`` over finite elements; None if no finite elements differ, and for keys.
        index: the first element, in row-major order, with that difference; without one, the first that differs.
        relative: ``‖a - b‖₂ / ‖a‖₂`` over the elements that are finite in A and in B; 0.0 if none of
            them differs, inf if A is all zeros and B is not; None for keys.
    """

    name: str
    status: DiffStatus
    shape_a: tuple[int, ...] | None = None
    shape_b: tuple[int, ...] | None = None
    dtype_a: str | None = None
    dtype_b: str | None = None
    detail: str = ""
    compared_as: ComparedAs | None = None
    elements: int | None = None
    nonfinite: int | None = None
    nans_a: int | None = None
    nans_b: int | None = None
    infinities_a: int | None = None
    infinities_b: int | None = None
    largest: int | float | None = None
    index: tuple[int, ...] | None = None
    relative: float | None = None

    @property
    def is_difference(self) -> bool:
        """True if the tensor differs, or is on one side only."""
        return self.status != "equal"

    def __repr__(self) -> str:
        if self.elements is None or not self.is_difference:
            return f"TensorDiff({self.name!r}: {self.detail or self.status})"
        return (
            f"TensorDiff({self.name!r}: {self.elements:,} elements differ, largest {self.largest}, "
            f"relative {self.relative})"
        )


class LeafDiff(Record, frozen=True):
    """The comparison of a leaf that is not a tensor on both sides: a string, None or an empty container.

    Attributes:
        name: in B; in A for a leaf that only A has.
        status: "no place in B" if B lacks it because its format, such as safetensors, holds tensors only; that is no
            difference.
        a, b: a description, such as ``"'adam'"`` for a string, ``"None"``, ``"Dict"`` or ``"float32 of shape
            [3]"``; None if the leaf is missing.
        source: the name in A; None for a leaf that only B has.
    """

    name: str
    status: LeafStatus
    a: str | None
    b: str | None
    source: str | None = None

    @property
    def is_difference(self) -> bool:
        """True if the leaf differs, or is on one side only though the other has a place for it."""
        return self.status in ("different", "only in A", "only in B")

    def __repr__(self) -> str:
        sides = (("A", self.a), ("B", self.b)) if self.status == "different" else ()
        found = "".join(f", {_short(text)} in {side}" for side, text in sides)
        return f"LeafDiff({self.name!r}: {self.status}{found})"


def _short(text: str | None) -> str:
    return "nothing" if text is None else text if len(text) <= 40 else f"{text[:39]}…"


def no_place_warnings(a: str, b: str, leaves: Iterable[LeafDiff]) -> tuple[str, ...]:
    """One sentence for each side whose format has no place for leaves of the other."""
    lost: dict[str, list[str]] = {}
    for leaf in leaves:
        if leaf.status.startswith("no place"):
            lost.setdefault(leaf.status, []).append(leaf.name)
    sides = {"no place in A": (b, a), "no place in B": (a, b)}
    return tuple(_not_compared(*sides[status], names) for status, names in lost.items())


def _not_compared(full: str, lacking: str, names: Sequence[str]) -> str:
    more = f" and {len(names) - 5:,} more" if len(names) > 5 else ""
    return (
        f"strings, None and empty containers of {full!r} are not compared, since the format of {lacking!r} holds tensors "
        f"only: {', '.join(map(repr, names[:5]))}{more}"
    )


class DiffReport(Record, frozen=True):
    """The differences of two checkpoints.

    Attributes:
        tensors: by name, those of A in its order, then those that only B has.
        leaves: the same for strings, None, empty containers, and leaves that are a tensor in only one of the two.
        seconds: wall time.
        warnings: one sentence each for leaves that are not compared, and for parts that a checkpoint lacks or leaves out.
    """

    JSON: ClassVar[Json] = Json(
        ("a", "b", "equal", "differences", "warnings", "tensors", "leaves", "seconds"),
        listed=("tensors", "leaves"),
    )

    a: str
    b: str
    tensors: Mapping[str, TensorDiff]
    leaves: Mapping[str, LeafDiff]
    seconds: float
    warnings: tuple[str, ...] = ()

    @property
    def equal(self) -> bool:
        """True if nothing differs."""
        return not self.differences

    @property
    def differences(self) -> int:
        """The number of tensors and other leaves that differ, or are in only one checkpoint."""
        tensors = sum(t.is_difference for t in self.tensors.values())
        return tensors + sum(x.is_difference for x in self.leaves.values())

    def __repr__(self) -> str:
        tensors = sum(t.is_difference for t in self.tensors.values())
        leaves = sum(x.is_difference for x in self.leaves.values())
        return (
            f"DiffReport({self.a!r}, {self.b!r}: {tensors:,} of {len(self.tensors):,} tensors and "
            f"{leaves:,} of {len(self.leaves):,} other leaves differ)"
        )
