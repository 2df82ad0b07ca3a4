"""Chunks of a checkpoint that are not stored: counted in a listing or an index, then refused or taken for fill values.

Orbax stores every chunk now, and records so (``store_array_data_equal_to_fill_value``): one that is not there was lost. Older
versions leave out chunks that hold nothing but the fill value, and nothing tells these from lost ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import islice

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
    refused = {name: stored for name, stored in found.items() if _refuses(reader, name, asked)}
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


def _refuses(reader: Reader, name: str, asked: MissingChunks | None) -> bool:
    return asked == "refuse" or (asked is None and not reader.tensors[name].may_be_missing)


def _why(reader: Reader, refused: Iterable[str]) -> str:
    if any(reader.tensors[name].may_be_missing for name in refused):
        return ""
    return ", though the checkpoint records that it stores every chunk"
