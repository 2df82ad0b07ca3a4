"""Warnings about checkpoints without checksums of their data.

A tensor is protected if a delta over it records a checksum, if a digest is recorded (by the program that wrote it, or by
``reshard fingerprint``), if its chunks or pieces have checksums, or if it was found equal to a tensor of another checkpoint that is protected.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from msgspec import Struct

from reshard.formats.base import Reader


class Unprotected(Struct, frozen=True):
    """The tensors of a checkpoint that no checksum protects.

    Attributes:
        is_all: True if these are all of its tensors.
        takes_record: True if ``reshard fingerprint`` can record their digests.
    """

    uri: str
    names: tuple[str, ...]
    is_all: bool
    takes_record: bool


def unprotected(reader: Reader, agreeing: Collection[str] = ()) -> Unprotected:
    """The unprotected tensors of an open checkpoint; ``agreeing`` names those that equal a protected tensor elsewhere."""
    bare = tuple(
        name
        for name, tensor in reader.tensors.items()
        if tensor.digest is None
        and tensor.crcs is None
        and not tensor.encoding.checksum
        and tensor.encoding.compressor != "delta"
        and name not in agreeing
        and not reader.recorded_ranges(name)
    )
    is_all = len(bare) == len(reader.tensors)
    return Unprotected(reader.uri, bare, is_all, reader.takes_record)


def record_warnings(*checkpoints: Unprotected) -> tuple[str, ...]:
    """One short line for all checkpoints of a command, if they have such tensors."""
    found = [checkpoint for checkpoint in checkpoints if checkpoint.names]
    return (f"{_subject(found)}; {_remedy(found)}",) if found else ()


def _subject(found: Sequence[Unprotected]) -> str:
    if len(found) > 1:
        which = " nor ".join(repr(checkpoint.uri) for checkpoint in found)
        return f"neither {which} carries a checksum of all data"
    (one,) = found
    if one.is_all:
        return f"{one.uri!r} carries no checksum"
    more = f" and {len(one.names) - 1:,} more" if one.names[1:] else ""
    return f"{one.uri!r} carries no checksum of {one.names[0]!r}{more}"


def _remedy(found: Sequence[Unprotected]) -> str:
    if any(checkpoint.takes_record for checkpoint in found):
        return "reshard fingerprint records digests"
    return "compare it with the published SHA-256"
