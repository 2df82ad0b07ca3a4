"""The checksums of deltas, by the names that their index gives them.

``xxh3-128`` and ``blake3`` are of the packages xxhash and blake3, ``adler32`` is zlib's; each as hex digits of its number or its bytes.
"""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, Any, Protocol, cast, get_args

from reshard.arguments import DeltaChecksum
from reshard.errors import MissingPackageError
from reshard.version import how_to_install

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
