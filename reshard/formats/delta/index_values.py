"""Checks of values that the index of a delta and the manifest of SkyRL both have: names, files, checksums and ids of versions.

``xxh3-128`` and ``blake3`` are of the packages xxhash and blake3, ``adler32`` is zlib's; each as hex digits of its number or its bytes.

A delta has two ids: of the version that it changes, and of its result. miles, slime and SGLang count versions, and name their folders
``weight_v000007``. ModelExpress takes any text, and the folder has its name. A number is one id, however many zeros it begins with.
"""

from __future__ import annotations

import re
import zlib
from typing import TYPE_CHECKING, Any, Protocol, cast, get_args

from reshard.arguments import DeltaChecksum
from reshard.errors import CorruptError, FormatError, MissingPackageError, shorten
from reshard.formats.safe_json import expect
from reshard.version import how_to_install

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


if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Bytes = bytes | memoryview | npt.NDArray[np.uint8]

Checksum = DeltaChecksum

CHECKSUMS: tuple[Checksum, ...] = get_args(Checksum)

HEX_DIGITS: dict[Checksum, int] = {"xxh3-128": 32, "blake3": 64, "adler32": 8}


class Hasher(Protocol):
    """Takes the bytes of a tensor in order."""

    def update(self, data: Any, /) -> object:
        """The next bytes."""
        ...

    def hexdigest(self) -> str:
        """The digest of all bytes so far."""
        ...


class Adler32:
    """zlib's checksum as a Hasher."""

    def __init__(self) -> None:
        self._value = 1

    def update(self, data: Any, /) -> None:
        self._value = zlib.adler32(data, self._value)

    def hexdigest(self) -> str:
        return f"{self._value:08x}"


def hasher(checksum: Checksum) -> Hasher:
    """A new hasher. Raises MissingPackageError where its package is not installed."""
    if checksum == "adler32":
        return Adler32()
    package = "xxhash" if checksum == "xxh3-128" else "blake3"
    try:
        if checksum == "xxh3-128":
            from xxhash import xxh3_128

            return cast("Hasher", xxh3_128())
        from blake3 import blake3

        return cast("Hasher", blake3())
    except ImportError:
        raise MissingPackageError(
            f"these deltas have checksums of the kind {checksum}, and the package {package} is not installed; {how_to_install('delta')}"
        ) from None


def checksum_of(checksum: Checksum, data: Bytes) -> str:
    """The checksum of some bytes, hex digits."""
    made = hasher(checksum)
    made.update(data)
    return made.hexdigest()


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
