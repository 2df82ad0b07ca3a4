"""Verifies the weights of a checkpoint against a root, which is computed anew even if one is recorded beside the weights.

Verifies a receipt: computes the roots of both checkpoints, and applies the receipt's rules to one to get the other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from msgspec import Struct
from msgspec.structs import astuple, replace

from reshard.arguments import MissingChunks
from reshard.engine.limits import Limits
from reshard.engine.metadata_budget import check_leaves_to_read, left_to_read
from reshard.engine.progress import Progress
from reshard.errors import (
    CorruptError,
    LayoutError,
    MemoryBudgetError,
    MissingError,
    PlanError,
    VerificationError,
)
from reshard.formats.base import WeightsVersion
from reshard.formats.lacks import filled_chunks, missing_warnings, read_as
from reshard.formats.names import IDENTITY_NAME, TREE_NAME
from reshard.formats.registry import CheckpointPath, open_reader
from reshard.identity.envelope import SignedAs, read_signed_root
from reshard.identity.identity_file import folder_of_identity, read_identity
from reshard.identity.keys import PublicKey
from reshard.identity.leaf_tree import is_root
from reshard.identity.receipt import Receipt
from reshard.identity.weights_identity import TensorIdentity, WeightsIdentity, identity_of
from reshard.storage.location import locate, real_text
from reshard.verification.reports import (
    IdentityVerdict,
    ReceiptVerdict,
    Status,
    TensorVerdict,
    Verification,
)
from reshard.verification.verify import verify_checkpoints


class _Root(Struct, frozen=True):
    """A computed root; None with the damage that prevented it."""

    root: str | None
    damage: tuple[str, ...] = ()


def verify_receipt(
    a: CheckpointPath,
    b: CheckpointPath,
    receipt: Receipt,
    limits: Limits,
    progress: Callable[[Progress], None] | None = None,
    missing_chunks: MissingChunks | None = None,
) -> Verification:
    """Compares both roots with the receipt, and B with the result of its rules for A; damage is reported, not raised.

    Rules that do not fit A are a difference too: the receipt is of another source. Raises otherwise as ``verify_checkpoints``.
    """
    given = (receipt.changes, missing_chunks, receipt.given_map)
    try:
        found = verify_checkpoints(a, b, limits, progress, *given)
    except (PlanError, LayoutError) as error:
        if isinstance(error, MemoryBudgetError):
            raise
        damage = (
            f"the rules of the receipt do not fit A, so that no tensor was compared: {error}",
        )
        found = Verification(a.path, b.path, (), damage=damage)
    of_a = _root(a, "A", limits, progress, missing_chunks)
    of_b = _root(b, "B", limits, progress, missing_chunks)
    return replace(
        found,
        damage=(*found.damage, *of_a.damage, *of_b.damage),
        receipt=ReceiptVerdict(
            of_a.root, receipt.source, of_b.root, receipt.target, receipt.reshard
        ),
    )


def _root(
    chosen: CheckpointPath,
    side: str,
    limits: Limits,
    progress: Callable[[Progress], None] | None,
    missing_chunks: MissingChunks | None,
) -> _Root:
    try:
        check_leaves_to_read(limits.max_memory, chosen)
        reader = read_as(open_reader(chosen), missing_chunks)
        limits = replace(limits, max_memory=left_to_read(limits.max_memory, reader))
        return _Root(identity_of(reader, limits, progress).root)
    except CorruptError as error:
        return _Root(None, (f"the root of {side} cannot be computed: {error}",))


class ExpectedRoot(Struct, frozen=True):
    """The root that the weights must have.

    Attributes:
        recorded: an identity of this root, with the expected hash of each tensor; None without one.
        signer: id of the key that signed it; "" for none.
        recorded_in: the file that records it; "" if it was given or signed.
        is_beside: True if that file lies beside the weights.
        said: the signed statement about the weights.
    """

    root: str
    recorded: WeightsIdentity | None = None
    signer: str = ""
    recorded_in: str = ""
    is_beside: bool = False
    said: SignedAs = SignedAs()


def expected_identity(
    chosen: CheckpointPath, given: str | None, key: PublicKey | None
) -> ExpectedRoot:
    """The root that a caller expects: given as 64 hex digits, read from a file that reshard identify wrote, or signed.

    Args:
        given: the root, an ``identity.json``, or a folder that has one; None for the checkpoint itself.

    Raises MissingError without an identity or a signature, VerificationError if the key signed none or another root, and
    the errors of reading the files.
    """
    by_root = given is not None and is_root(given.lower())
    beside = by_root or given is None
    folder = locate(chosen.path).view() if beside else folder_of_identity(str(given))
    # This check does not need the tree. It is read so that its damage is reported.
    recorded = read_identity(folder, with_tree=(folder / TREE_NAME).exists())
    signed = None if key is None else read_signed_root(folder, key)
    if by_root:
        root = str(given).lower()
    elif signed is not None:
        root = signed.root
    elif recorded is None:
        raise MissingError(
            f"{folder / IDENTITY_NAME} does not exist: expected a root of 64 hex digits, or a folder with the files of an identity "
            "(reshard identify makes them)"
        )
    else:
        beside = real_text(folder) == real_text(locate(chosen.path))
        return ExpectedRoot(
            recorded.root, recorded, recorded_in=str(folder / IDENTITY_NAME), is_beside=beside
        )
    if key is not None and signed is not None and signed.root != root:
        raise VerificationError(
            f"the key {key.id[:16]}… has signed the root {signed.root}, but {root} was given; check which of "
            "both you trust"
        )
    # The recorded identity locates the tensors that differ; it is no evidence unless its root is the expected one.
    if recorded is not None and recorded.root != root:
        recorded = None
    said = SignedAs() if signed is None else signed.said
    return ExpectedRoot(root, recorded, "" if key is None else key.id, said=said)


def verify_identity(
    chosen: CheckpointPath,
    expected: ExpectedRoot,
    limits: Limits,
    progress: Callable[[Progress], None] | None = None,
) -> Verification:
    """Reads every tensor, computes the root, and compares it; names the tensors that differ if the expected ones are known.

    Weights that cannot be read have no root: then each tensor is compared with its record.
    """
    check_leaves_to_read(limits.max_memory, chosen)
    try:
        reader = open_reader(chosen)
        left = replace(limits, max_memory=left_to_read(limits.max_memory, reader))
        found = identity_of(reader, left, progress)
    except (CorruptError, VerificationError) as error:
        checked = verify_checkpoints(chosen, None, limits, progress)
        damage = checked.damage if checked.differences else (*checked.damage, str(error))
        return replace(checked, damage=damage, identity=_verdict_of(None, expected))
    is_equal = found.root == expected.root
    warnings = (
        *reader.warnings,
        *missing_warnings(reader.uri, filled_chunks(reader)),
        *_other_record(reader.version, found.root),
        *_no_evidence(expected),
    )
    return Verification(
        chosen.path,
        None,
        tuple(_verdicts(found, expected.recorded, is_equal=is_equal)),
        warnings=warnings,
        identity=_verdict_of(found.root, expected),
    )


def _verdict_of(root: str | None, expected: ExpectedRoot) -> IdentityVerdict:
    recorded_in = expected.recorded_in or None
    return IdentityVerdict(
        root, expected.root, expected.signer or None, recorded_in, *astuple(expected.said)
    )


def _no_evidence(expected: ExpectedRoot) -> tuple[str, ...]:
    """A warning that an identity beside the weights finds accidents only."""
    if not expected.is_beside:
        return ()
    return (
        f"{expected.recorded_in} lies beside the weights, so that one who changes them can change it too; give a root that you trust "
        "(identity), or the key that signed it (key)",
    )


def _other_record(version: WeightsVersion | None, found: str) -> tuple[str, ...]:
    """A warning if the last delta records another root: no evidence, but a reader may rely on it."""
    if version is None or version.root in (None, found):
        return ()
    return (
        f"the root is {found}, but the delta of the version {version.id} records {version.root}: somebody changed a delta, or the "
        "identity was of other weights",
    )


def _verdicts(
    found: WeightsIdentity, recorded: WeightsIdentity | None, *, is_equal: bool
) -> Iterator[TensorVerdict]:
    for name, tensor in found.tensors.items():
        known = None if recorded is None else recorded.tensors.get(name)
        if is_equal:
            yield TensorVerdict(name, "recorded", tensor.crc64nvme, tensor.crc64nvme)
        elif recorded is None:
            yield TensorVerdict(name, "not recorded", tensor.crc64nvme, None)
        elif known is None:
            yield TensorVerdict(name, "only in A", tensor.crc64nvme, None)
        else:
            yield _compared(tensor, known)
    for name in () if recorded is None else recorded.tensors:
        if name not in found.tensors:
            detail = "the identity has it, and the checkpoint does not"
            yield TensorVerdict(name, "only in B", None, None, detail)


def _compared(found: TensorIdentity, known: TensorIdentity) -> TensorVerdict:
    status: Status = "recorded" if found.entry == known.entry else "different"
    detail = ""
    if (found.dtype, found.shape) != (known.dtype, known.shape):
        detail = f"{found.dtype} {list(found.shape)}, but {known.dtype} {list(known.shape)} was identified"
    elif status == "different":
        detail = "its bits are not those that were identified"
    return TensorVerdict(found.name, status, found.crc64nvme, known.crc64nvme, detail)
