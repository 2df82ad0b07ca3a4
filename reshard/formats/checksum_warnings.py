"""Warnings about checkpoints that carry no checksum of their data.

A tensor is vouched for by its recorded digest (reshard wrote it, or ``reshard fingerprint`` read it: that
acknowledges the checkpoint as it is), by the checksums of its chunks, or by another checkpoint that is
compared with it, has a digest of its own, and has the same bits.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from msgspec import Struct

from reshard.formats.base import Reader
from reshard.formats.registry import takes_record


class Unvouched(Struct, frozen=True):
    """The tensors of a checkpoint that nothing vouches for.

    Attributes:
        is_all: whether it has no others.
        takes_record: whether ``reshard fingerprint`` can record their digests.
    """

    uri: str
    names: tuple[str, ...]
    is_all: bool
    takes_record: bool


def unvouched(reader: Reader, agreeing: Collection[str] = ()) -> Unvouched:
    """The unvouched tensors of an open checkpoint; another checkpoint vouches for those in ``agreeing``."""
    bare = tuple(
        name
        for name, tensor in reader.tensors.items()
        if tensor.digest is None and not tensor.encoding.checksum and name not in agreeing
    )
    is_all = len(bare) == len(reader.tensors)
    return Unvouched(reader.uri, bare, is_all, takes_record(reader))


def record_warnings(*checkpoints: Unvouched) -> tuple[str, ...]:
    """One sentence for all checkpoints of a command, if they have such tensors."""
    found = [checkpoint for checkpoint in checkpoints if checkpoint.names]
    if not found:
        return ()
    return (f"{_subject(found)}, so damage from before now cannot be seen; {_remedy(found)}",)


def _subject(found: Sequence[Unvouched]) -> str:
    if len(found) > 1:
        which = " nor ".join(repr(checkpoint.uri) for checkpoint in found)
        return f"neither {which} carries a checksum of all its data"
    (one,) = found
    some = "its data" if one.is_all else repr(one.names[0])
    more = f" and {len(one.names) - 1:,} more tensors" if one.names[1:] and not one.is_all else ""
    return f"{one.uri!r} carries no checksum of {some}{more}"


def _remedy(found: Sequence[Unvouched]) -> str:
    takers = [checkpoint.uri for checkpoint in found if checkpoint.takes_record]
    if not takers:
        return "compare the files with the SHA-256 sums that are published where they come from"
    which = f" {takers[0]}" if len(takers) == 1 else ""
    return f"reshard fingerprint{which} records digests, by which later damage is found"
