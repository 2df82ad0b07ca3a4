"""PlannedIdentity: the cost of a target's identity, known before anything is written."""

from __future__ import annotations

from collections.abc import Collection
from typing import Annotated, ClassVar, Literal

from msgspec import Meta

from reshard.answers.record import Json, Record
from reshard.conversion.known_identity import KnownIdentity
from reshard.formats.base import TargetCheckpoint
from reshard.formats.contents import StoredTensor
from reshard.identity.read_leaves import hashing_memory
from reshard.planning.task_cost import DECODE_BYTES_PER_SECOND

HASH_BYTES_PER_SECOND = 1.7e9
"""Reading the written bytes, finding their tiles and hashing them, on one core (measured, docs/decisions/0065)."""


class PlannedIdentity(Record, frozen=True):
    """The cost of the identity of a target's weights.

    Attributes:
        read_bytes: 0 where the identity is carried.
        decoded_bytes: also where chunks were copied encoded.
        peak_bytes: buffers in memory at the worst moment; never above ``max_memory``.
        source: None where the source records none, and then no receipt is written.
    """

    JSON: ClassVar[Json] = Json(left_out=("source",))

    how: Literal["carry", "compute", "check"]
    read_bytes: Annotated[
        int, Meta(description="Of the target's tensors, which are read once more to be hashed.")
    ] = 0
    decoded_bytes: Annotated[
        int, Meta(description="Those of them that are stored compressed, so that they are decoded.")
    ] = 0
    peak_bytes: int = 0
    core_s: Annotated[float, Meta(description="Seconds of one processor, about.")] = 0.0
    source: Annotated[
        str | None, Meta(description="Root that the source records, 64 hex digits.")
    ] = None


def planned_identity(
    known: KnownIdentity, target: TargetCheckpoint, max_memory: int, workers: int
) -> PlannedIdentity | None:
    """The cost of an identity; None where none is made. MemoryBudgetError where hashing needs more memory."""
    source = None if known.of_source is None else known.of_source.root
    if known.mode == "none":
        return None
    if known.mode == "carry":
        return PlannedIdentity("carry", source=source)
    written = [
        StoredTensor(t.spec, t.encoding, b"", may_be_missing=False) for t in target.tensors.values()
    ]
    nbytes = sum(tensor.spec.nbytes for tensor in written)
    decoded = _decoded_bytes(written)
    return PlannedIdentity(
        known.mode,
        nbytes,
        decoded,
        hashing_memory(written, max_memory, workers),
        nbytes / HASH_BYTES_PER_SECOND + decoded / DECODE_BYTES_PER_SECOND,
        source,
    )


def _decoded_bytes(written: Collection[StoredTensor]) -> int:
    return sum(t.spec.nbytes for t in written if t.encoding.compressor != "none")
