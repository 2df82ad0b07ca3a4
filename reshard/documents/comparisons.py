"""What is shown of comparisons: of a checkpoint with its record, and of two checkpoints."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from msgspec import UNSET, Meta, Struct, UnsetType, field

from reshard.documents.shared import Digest, MissingNumbers, Shape

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


class VerifiedTensor(Struct, frozen=True):
    """The comparison of one tensor."""

    name: str
    status: Status
    digest_a: Digest | None
    digest_b: Digest | None
    detail: str
    source: str | None
    comparison: Comparison
    source_dtype: str | None
    target_dtype: str | None
    saturate: bool


class VerifiedLeaf(Struct, frozen=True):
    """The comparison of a leaf that is not a tensor on both sides: a string, None or an empty container."""

    name: str
    status: Literal[
        "equal", "different", "only in A", "only in B", "no place in A", "no place in B"
    ]
    a: str | None
    b: str | None
    source: str | None


class VerifiedFile(Struct, frozen=True):
    """The comparison of a file with its record."""

    name: str
    status: Literal["recorded", "different", "missing", "unexpected", "unreadable", "added"]
    stored: str | None
    recorded: str | None
    detail: str
    side: Literal["A", "B"]


class VerifiedRules(Struct, frozen=True):
    """The rules by which B was made from A."""

    from_: Literal["recorded", "given"] = field(name="from")
    select: tuple[str, ...]
    drop: tuple[str, ...]
    rename: tuple[tuple[str, str], ...]
    cast: tuple[tuple[str, str], ...]


class VerifiedIdentity(Struct, frozen=True):
    """The root of the weights beside the one that was expected."""

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
    ]
    recorded_in: Annotated[
        str | UnsetType,
        Meta(description="The file that records the expected root, where it was not given itself."),
    ] = UNSET
    name: Annotated[
        str | UnsetType, Meta(description="Of the model, where the signature says it.")
    ] = UNSET
    version: Annotated[str | UnsetType, Meta(description="Of the model, likewise.")] = UNSET
    signed_at: Annotated[str | UnsetType, Meta(description="When it was signed, likewise.")] = UNSET


class VerifiedReceipt(Struct, frozen=True):
    """The roots of both checkpoints beside those that a receipt names."""

    source: Annotated[
        str | None,
        Meta(description="Root of A, computed anew; null where it cannot be computed."),
    ]
    expected_source: str
    target: Annotated[str | None, Meta(description="The same of B.")]
    expected_target: str
    reshard: Annotated[str, Meta(description="Version that wrote the receipt.")]


class VerificationAnswer(Struct, frozen=True, kw_only=True):
    """What ``reshard verify --json`` prints; differences are an answer, not a problem."""

    a: str
    b: str | None
    equal: bool
    differences: int
    damage: tuple[str, ...]
    warnings: tuple[str, ...] = ()
    rules: Annotated[
        VerifiedRules | None,
        Meta(
            description="The rules by which B was made from A; null if tensors are compared by name."
        ),
    ] = None
    dropped: Annotated[
        tuple[str, ...], Meta(description="Tensors of A that the rules leave out of B.")
    ] = ()
    missing_chunks: Annotated[
        Mapping[str, MissingNumbers],
        Meta(description="Of A and of B, the chunks that are not stored."),
    ] = field(default_factory=dict)
    files: tuple[VerifiedFile, ...]
    tensors: tuple[VerifiedTensor, ...]
    leaves: Annotated[
        tuple[VerifiedLeaf, ...],
        Meta(
            description="Leaves that are not a tensor on both sides: strings, None, empty containers."
        ),
    ] = ()
    map: Annotated[
        Literal["given", "recorded"] | UnsetType,
        Meta(description="Of a comparison with what a map makes of A: whose map it is."),
    ] = UNSET
    identity: Annotated[
        VerifiedIdentity | UnsetType,
        Meta(description="Of a comparison with a root: both roots, and who signed."),
    ] = UNSET
    receipt: Annotated[
        VerifiedReceipt | UnsetType,
        Meta(description="Of a comparison by a receipt: both roots, and those that it names."),
    ] = UNSET


class DiffTensor(Struct, frozen=True):
    """How a tensor differs; members from ``elements`` on are null if values cannot be compared."""

    name: str
    status: Literal["equal", "different", "only in A", "only in B"]
    shape_a: Shape | None
    shape_b: Shape | None
    dtype_a: str | None
    dtype_b: str | None
    detail: str
    compared_as: Literal["bits", "integers", "float64", "complex128"] | None
    elements: int | None
    nonfinite: int | None
    nans_a: int | None
    nans_b: int | None
    infinities_a: int | None
    infinities_b: int | None
    largest: float | None
    index: Shape | None
    relative: float | None


class DiffAnswer(Struct, frozen=True):
    """What ``reshard diff --json`` prints."""

    a: str
    b: str
    equal: bool
    differences: int
    warnings: tuple[str, ...]
    tensors: tuple[DiffTensor, ...]
    leaves: tuple[VerifiedLeaf, ...]
    seconds: float
