"""Checks of values that the index of a delta and the manifest of SkyRL both have: names, files and checksums."""

from __future__ import annotations

import re
from typing import Any

from reshard.errors import CorruptError, shorten
from reshard.formats.delta.checksums import HEX_DIGITS, Checksum
from reshard.formats.json.safe_json import expect

_REMEDY = "restore the folder from a copy, or publish a full version"
_HEX = re.compile(r"[0-9a-f]+")


def damaged_index(where: str, what: str) -> CorruptError:
    """The error of an index or a manifest that contradicts itself."""
    return CorruptError(f"{where}: {what}; {_REMEDY}")


def payload_file(file: Any, what: str, where: str) -> str:
    """The name of a file of a delta; CorruptError, naming ``what``, for anything but a name in its folder."""
    found = expect(file, str, what, where)
    if found in ("", ".", "..") or any(c in found for c in "/\\\0") or not is_text(found):
        raise damaged_index(
            where, f"{what} is {found[:200]!r}; expected the name of a file in its folder"
        )
    return found


def checked_digest(value: Any, checksum: Checksum, what: str, where: str) -> str:
    """A checksum from a file; CorruptError, naming ``what``, for anything else."""
    found = expect(value, str, what, where)
    if len(found) != HEX_DIGITS[checksum] or not _HEX.fullmatch(found):
        raise damaged_index(
            where,
            f"{what} is {shorten(found)}; expected {HEX_DIGITS[checksum]} hex digits of {checksum}",
        )
    return found


def by_name(value: Any, what: str, where: str) -> dict[str, Any]:
    """An object of the index whose keys are names of tensors."""
    found: dict[str, Any] = expect(value, dict, what, where)
    for name in found:
        if not is_text(name):
            raise damaged_index(where, f"the name {name[:80]!r} in {what} is no text")
    return found


def is_text(name: str) -> bool:
    """True if UTF-8 can hold the name: JSON may have halves of surrogate pairs."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True
