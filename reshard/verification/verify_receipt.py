"""Verifies a receipt: computes the roots of both checkpoints, and applies the receipt's rules to one to get the other."""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct
from msgspec.structs import replace

from reshard.arguments import MissingChunks
from reshard.engine.limits import Limits
from reshard.engine.metadata_budget import check_leaves_to_read, left_to_read
from reshard.engine.progress import Progress
from reshard.errors import CorruptError, LayoutError, MemoryBudgetError, PlanError
from reshard.formats.checkpoint_path import CheckpointPath
from reshard.formats.missing_chunks import read_as
from reshard.formats.registry import open_reader
from reshard.identity.receipt import Receipt
from reshard.identity.weights_identity import identity_of
from reshard.verification.verify import verify_checkpoints
from reshard.verification.verify_report import ReceiptVerdict, Verification


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
