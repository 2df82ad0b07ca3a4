"""The id of a version of the weights. A delta has two: of the version that it changes, and of its result.

miles, slime and SGLang count versions, and name their folders ``weight_v000007``. ModelExpress takes any text, and the folder has its name. A number
is one id, however many zeros it begins with.
"""

from __future__ import annotations

import re
from typing import Any

from reshard.errors import FormatError, shorten
from reshard.formats.json.safe_json import expect

MOST_ID_BYTES = 200
"""A folder's name has 255 bytes at most, and a run adds a suffix to it."""

_DIGITS = 6
_NUMBER = re.compile(r"[0-9]{1,15}")
_NUMBERED = re.compile(r"(.*?)([0-9]{1,15})", re.DOTALL)


def version_text(number: int) -> str:
    """The id of a numbered version, as folders and indexes have it.

    >>> version_text(7)
    '000007'
    """
    return f"{number:0{_DIGITS}d}"


def version_id(text: str) -> str:
    """The id that a text names.

    >>> version_id("7"), version_id("v7")
    ('000007', 'v7')
    """
    return version_text(int(text)) if is_number(text) else text


def is_number(text: str) -> bool:
    """True if a version is a number."""
    return text.isascii() and _NUMBER.fullmatch(text) is not None


def can_be_id(text: str) -> bool:
    """True if a text can name a folder and stand in a message."""
    # Against ids of strangers that are paths out of the folder, hidden, or longer than a file system takes.
    is_name = text.isprintable() and not any(c in text for c in "/\\")
    return is_name and not text.startswith(".") and 0 < len(text.encode()) <= MOST_ID_BYTES


def checked_version(value: Any, what: str, where: str) -> str:
    """The id in a file; FormatError, naming ``what``, for a text that can name no folder, CorruptError for no text."""
    # An early ModelExpress writes a number.
    is_count = isinstance(value, int) and not isinstance(value, bool) and value >= 0
    found = str(value) if is_count else expect(value, str, what, where)
    if not can_be_id(found):
        raise FormatError(
            f"{where}: {what} is {shorten(found)}; expected the id of a version, such as 000007 or v7: the name of a folder, of {MOST_ID_BYTES} "
            "bytes at most; rename the version where it is written"
        )
    return version_id(found)


def version_order(version: str) -> tuple[str, int]:
    """A sort key for versions that do not stand on one another: the number at the end of their ids, if the rest is the same."""
    found = _NUMBERED.fullmatch(version)
    return (version, -1) if found is None else (found[1], int(found[2]))


def folder_of(version: str) -> str:
    """The name of the folder of a version.

    >>> folder_of("000007"), folder_of("v7")
    ('weight_v000007', 'v7')
    """
    return f"weight_v{version}" if is_number(version) else version
