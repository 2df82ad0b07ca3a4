"""The lacks of a checkpoint that is read: chunks that are not stored, and checksums of its data.

Orbax stores every chunk now, and records so (``store_array_data_equal_to_fill_value``): one that is not there was lost. Older
versions leave out chunks that hold nothing but the fill value, and nothing tells these from lost ones. So chunks that are not stored
are counted in a listing or an index, then refused or taken for fill values.

A tensor is protected if a delta over it records a checksum, if a digest is recorded (by the program that wrote it, or by
``reshard fingerprint``), if its chunks or pieces have checksums, or if it was found equal to a tensor of another checkpoint that is protected.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import islice

from msgspec import Struct

from reshard.answers.record import counted
from reshard.arguments import MissingChunks
from reshard.errors import CorruptError
from reshard.formats.base import Reader
from reshard.formats.contents import Stored

MOST_NAMED = 3

_FILLED = (
    "the fill value, mostly 0, is taken instead: older versions of Orbax leave out chunks that hold nothing else. Files that a "
    "copy lost look the same, so compare the copy with its original"
)


def read_as(reader: Reader, *asked: MissingChunks | None) -> Reader:
    """The checkpoint, read so that chunks which are not stored are filled if one of ``asked`` says so.

    If none does, they are refused where all say so; else by what the checkpoint records.
    """
    if any(one in ("warn", "allow") for one in asked):
        return reader.chunks.with_missing(reader, True)
    if all(one == "refuse" for one in asked):
        return reader.chunks.with_missing(reader, False)
    return reader


def check_missing(
    reader: Reader, names: Iterable[str], asked: MissingChunks | None
) -> dict[str, Stored]:
    """The tensors with chunks that are not stored.

    Args:
        reader: as it was opened.
        asked: None refuses them where the checkpoint records that it stores every chunk.

    Raises CorruptError, with tensors and numbers, where they are refused.
    """
    found = reader.chunks.lacking(names)
    refused = {
        name: stored
        for name, stored in found.items()
        if asked == "refuse" or (asked is None and not reader.tensors[name].may_be_missing)
    }
    if refused:
        raise CorruptError(
            f"{reader.uri!r}: {not_stored(refused)}{_why(reader, refused)}; restore the checkpoint from a copy, or take "
            'the fill value, mostly 0, in their place (missing_chunks="allow")'
        )
    return found


def filled_chunks(reader: Reader | None) -> dict[str, Stored]:
    """The tensors with chunks that are not stored and are read as fill values."""
    if reader is None:
        return {}
    names = [name for name, tensor in reader.tensors.items() if tensor.may_be_missing]
    return reader.chunks.lacking(names)


def numbers(found: Mapping[str, Stored]) -> dict[str, int]:
    """The number of chunks of each tensor that are not stored."""
    return {name: stored.missing for name, stored in found.items()}


def missing_warnings(
    uri: str, found: Mapping[str, Stored], asked: MissingChunks | None = None
) -> tuple[str, ...]:
    """One sentence about chunks that are taken for fill values; none where the caller allows it."""
    if not found or asked == "allow":
        return ()
    return (f"{uri!r}: {not_stored(found)}; {_FILLED}",)


def filled_warning(uri: str, what: str, missing: int) -> str:
    """The sentence about a stream that takes fill values for so many chunks."""
    return f"{uri!r}: {counted(missing, 'chunk')} of {what} {_verb(missing)} not stored; {_FILLED}"


def not_stored(found: Mapping[str, Stored]) -> str:
    """The number of chunks that are not stored, and their tensors, in words."""
    missing = sum(stored.missing for stored in found.values())
    some = ", ".join(
        f"{name!r} ({stored.missing:,} of {stored.chunks:,})"
        for name, stored in islice(found.items(), MOST_NAMED)
    )
    rest = len(found) - MOST_NAMED
    more = f" and {counted(rest, 'more tensor')}" if rest > 0 else ""
    return f"{counted(missing, 'chunk')} {_verb(missing)} not stored: {some}{more}"


def _verb(count: int) -> str:
    return "is" if count == 1 else "are"


def _why(reader: Reader, refused: Iterable[str]) -> str:
    if any(reader.tensors[name].may_be_missing for name in refused):
        return ""
    return ", though the checkpoint records that it stores every chunk"


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
        and not tensor.is_checked
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
