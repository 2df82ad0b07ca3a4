"""Warnings about checkpoints that carry no checksum of their data.

A tensor is vouched for by its recorded digest (reshard wrote it, or ``reshard fingerprint`` read it: that
acknowledges the checkpoint as it is), by the checksums of its chunks, or by another checkpoint that is
compared with it, has a digest of its own, and holds the same bits.
"""

from __future__ import annotations

from collections.abc import Collection

from msgspec import Struct

from reshard.formats.base import Reader


class Unvouched(Struct, frozen=True):
    """The tensors of a checkpoint that nothing vouches for; ``is_all`` where it has no others."""

    uri: str
    names: tuple[str, ...]
    is_all: bool


def unvouched(reader: Reader, agreeing: Collection[str] = ()) -> Unvouched:
    """Those of an open checkpoint; ``agreeing`` are vouched for by another."""
    bare = tuple(
        name
        for name, tensor in reader.tensors.items()
        if tensor.digest is None and not tensor.encoding.checksum and name not in agreeing
    )
    return Unvouched(reader.uri, bare, len(bare) == len(reader.tensors))


def record_warnings(*checkpoints: Unvouched) -> tuple[str, ...]:
    """One sentence, for all checkpoints of a command, where there are such tensors."""
    found = [checkpoint for checkpoint in checkpoints if checkpoint.names]
    if not found:
        return ()
    if len(found) > 1:
        which = " nor ".join(repr(checkpoint.uri) for checkpoint in found)
        return (
            f"neither {which} carries a checksum of all its data, so damage from before now cannot be seen; "
            "reshard fingerprint records digests, by which later damage is found",
        )
    (one,) = found
    some = "its data" if one.is_all else repr(one.names[0])
    more = f" and {len(one.names) - 1:,} more tensors" if one.names[1:] and not one.is_all else ""
    return (
        f"{one.uri!r} carries no checksum of {some}{more}, so damage from before now cannot be seen; "
        f"reshard fingerprint {one.uri} records digests, by which later damage is found",
    )
