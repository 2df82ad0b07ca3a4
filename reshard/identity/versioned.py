"""Versioned: a strict reader of the JSON files of an identity, by their version, since strangers may have made them."""

from __future__ import annotations

from typing import TypeVar

import msgspec
from msgspec import Struct

from reshard.errors import CorruptError, FormatError
from reshard.formats.json.safe_json import checked_text, refuse_many_values

T = TypeVar("T")


class Versioned(Struct, frozen=True):
    """A kind of file.

    Attributes:
        format, version: the values of its members of these names.
        what: the file in words.
        command: that writes it.
        remedy: the remedy for a damaged one.
    """

    format: str
    version: int
    what: str
    command: str
    remedy: str

    def damaged(self, where: str, problem: str) -> CorruptError:
        """The error of a file that is damaged."""
        return CorruptError(f"{where} is damaged: {problem}; {self.remedy}")


class _Head(Struct, frozen=True):
    """The members that every version of a file has."""

    format: str = ""
    version: int = 0


def parse_versioned(data: bytes, where: str, kind: Versioned, document: type[T]) -> T:
    """The content of a file.

    Raises CorruptError, naming the file, where it is damaged, FormatError where another program or a newer version wrote it.
    """
    try:
        refuse_many_values(data, where)
        text = checked_text(data, where)
        _refuse_other(msgspec.json.decode(text, type=_Head), where, kind)
        return msgspec.json.decode(text, type=document)
    except msgspec.DecodeError as error:
        raise kind.damaged(where, str(error)) from None


def _refuse_other(head: _Head, where: str, kind: Versioned) -> None:
    if head.format != kind.format:
        raise FormatError(
            f"{where} is not {kind.what} of reshard: expected the format {kind.format!r}, found {head.format[:60]!r}; choose the file "
            f"that {kind.command} wrote"
        )
    if head.version != kind.version:
        raise FormatError(
            f"{where} has version {head.version} of {kind.format}, and this reshard reads version {kind.version}; install a newer reshard"
        )
