"""Verification: the result of comparing two checkpoints, or one with its record; TensorVerdict: that of one tensor."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import UNSET, field

from reshard.documents.comparisons import (
    Comparison,
    Status,
    VerificationAnswer,
    VerifiedFile,
    VerifiedIdentity,
    VerifiedLeaf,
    VerifiedReceipt,
    VerifiedRules,
    VerifiedTensor,
)
from reshard.documents.shared import document_of
from reshard.formats.slices.file_digests import FileVerdict
from reshard.layout.changes import Changes
from reshard.planning.rules import RulesFrom
from reshard.record import Record, counted, several, warned
from reshard.verification.diff_report import LeafDiff

AGREEING: frozenset[Status] = frozenset({"equal", "recorded", "checksum"})


class TensorVerdict(Record, frozen=True):
    """The result of comparing one tensor.

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
    digest_a: str | None
    digest_b: str | None
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
    """The root of the weights, and the expected one.

    Attributes:
        root: of the weights, computed anew, 64 hex digits; None if they cannot be read.
        expected: the given or signed root, or the one that a file records.
        signer: id of the key that signed ``expected``; None without a given key.
        recorded_in: the file that records ``expected``; None if the root was given or signed.
        name, version, signed_at: the signed statement about the weights; "" for a fact that it lacks.
    """

    root: str | None
    expected: str
    signer: str | None = None
    recorded_in: str | None = None
    name: str = ""
    version: str = ""
    signed_at: str = ""

    @property
    def is_difference(self) -> bool:
        """True if the weights have another root."""
        return self.root != self.expected

    def _document(self) -> VerifiedIdentity:
        said = (text or UNSET for text in (self.name, self.version, self.signed_at))
        return VerifiedIdentity(
            self.root, self.expected, self.signer, self.recorded_in or UNSET, *said
        )

    def __repr__(self) -> str:
        verdict = f"not {self.expected}" if self.is_difference else "as expected"
        signed = f", signed by {self.signer[:16]}…" if self.signer else ""
        return f"IdentityVerdict({self.root}: {verdict}{signed})"


class ReceiptVerdict(Record, frozen=True):
    """The roots of both checkpoints, and those that a receipt names.

    Attributes:
        source: root of A, computed anew, 64 hex digits; None if it cannot be computed.
        expected_source: the root of A that the receipt names.
        target, expected_target: the same of B.
        reshard: the version that wrote the receipt.
    """

    source: str | None
    expected_source: str
    target: str | None
    expected_target: str
    reshard: str

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


class Verification(Record, frozen=True):
    """The result of comparing two checkpoints, or one with its record.

    Attributes:
        files: every file that was compared with a record, of A and of B.
        damage: the reasons why a checkpoint with a record of itself could not be read; empty if it could.
        warnings: one sentence each.
        dropped: tensors of A that the rules leave out of B; they do not count as differences.
        rules: the rules by which B was made of A; None if tensors were compared name by name.
        rules_from: the origin of the rules: the caller, or B's record.
        leaves: leaves that are not a tensor on both sides: strings, None and empty containers. Empty without B: files
            hold them, and are compared with their record.
        map_from: the origin of the map by which B was made of A: the caller, or B's record; None without a map.
        receipt: both roots and those of the receipt, if one was given; ``rules`` are its rules.
        identity: the compared root, if one was expected; then ``tensors`` are compared with the identity of that root, if it is
            at hand.
        missing_chunks: for "A" and "B", the number of chunks of each tensor that are not stored and were read as fill values.
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
    map_from: RulesFrom | None = None
    identity: IdentityVerdict | None = None
    receipt: ReceiptVerdict | None = None

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

    def _document(self) -> VerificationAnswer:
        agree = self.identity is not None or all(t.status in AGREEING for t in self.tensors)
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
            map=UNSET if self.map_from is None else self.map_from,
            identity=UNSET if self.identity is None else self.identity._document(),
            receipt=UNSET if self.receipt is None else document_of(self.receipt, VerifiedReceipt),
        )

    @property
    def _rules(self) -> VerifiedRules | None:
        if self.rules is None or self.rules_from is None:
            return None
        return document_of(self.rules, VerifiedRules, from_=self.rules_from)

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
