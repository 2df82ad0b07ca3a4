"""KnownIdentity: what is done about the identity of a target's weights, known before anything is written."""

from __future__ import annotations

from msgspec import Struct

from reshard.conversion.options import IdentityMode
from reshard.engine.limits import Limits
from reshard.errors import PlanError
from reshard.formats.base import Reader, TargetCheckpoint
from reshard.formats.contents import StoredTensor
from reshard.identity.hashes import check_installed, is_installed
from reshard.identity.identity_file import read_identity
from reshard.identity.leaf_blocks import check_leaves_fit
from reshard.identity.weights_identity import WeightsIdentity, check_identity_of
from reshard.planning.tensor_plan import Plan, TensorPlan
from reshard.storage.location import Location


class KnownIdentity(Struct, frozen=True):
    """What is done about the identity of a target.

    Attributes:
        mode: what was asked, or what is done where nothing was.
        of_source: the identity that the source records, if it is needed.
    """

    mode: IdentityMode
    of_source: WeightsIdentity | None = None


def known_identity(
    asked: IdentityMode | None, plan: Plan, reader: Reader, source: Location
) -> KnownIdentity:
    """What is done about the identity of a target, before anything is written; ``source`` answers from the listing of the call.

    Raises PlanError where an identity must be carried or checked and the source has none, or tensors get other bits; CorruptError
    where the source's does not fit its tensors.
    """
    if asked in ("none", "compute") or (asked is None and not is_installed()):
        return KnownIdentity(asked or "none")
    of_source = read_identity(source.view(), with_tree=True)
    other = next((tensor.name for tensor in plan.tensors if not _keeps_bits(tensor)), None)
    if asked is None and (of_source is None or other is not None):
        return KnownIdentity("none")
    mode = asked or "carry"
    if of_source is None:
        raise PlanError(
            f"{reader.uri} records no identity that could be {_DONE[mode]}; record it with reshard identify --write, or compute "
            "the target's (identity)"
        )
    if other is not None:
        raise PlanError(
            f"{other!r} gets other bits than its source, so that no identity can be {_DONE[mode]}; compute the target's (identity)"
        )
    check_identity_of(reader, of_source)
    return KnownIdentity(mode, of_source)


_DONE = {"carry": "carried", "check": "checked"}


def check_identity_fits(known: KnownIdentity, target: TargetCheckpoint, limits: Limits) -> None:
    """Raises, before anything is written, MemoryBudgetError where hashing needs more memory, and MissingPackageError."""
    if known.mode in ("compute", "check"):
        check_installed()
        written = target.tensors.values()
        tensors = [StoredTensor(t.spec, t.encoding, b"", may_be_missing=False) for t in written]
        check_leaves_fit(tensors, limits.max_memory)


def _keeps_bits(tensor: TensorPlan) -> bool:
    """Whether a target tensor is a whole source tensor, bit for bit."""
    if len(tensor.pieces) != 1:
        return False
    piece, spec = tensor.piece, tensor.target.spec
    return (
        piece.fill is None
        and not piece.is_computed
        and piece.source_view is None
        and piece.target_view is None
        and piece.axis_order == tuple(range(len(spec.shape)))
        and piece.source_box.shape == tensor.source.spec.shape == spec.shape
    )
