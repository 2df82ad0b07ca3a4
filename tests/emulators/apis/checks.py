"""Checksums that come with a request, compared with its bytes."""

from __future__ import annotations

import base64
import hashlib
import zlib
from collections.abc import Callable

import msgspec
from awscrt.checksums import crc32c, crc64nvme

from tests.emulators.apis.error_answers import BAD_DIGEST, RefusedRequestError


def base64_of(number: int, nbytes: int) -> str:
    """A checksum as it stands in headers: big-endian, in base64."""
    return base64.b64encode(number.to_bytes(nbytes, "big")).decode()


def number_of(text: str) -> int:
    return int.from_bytes(base64.b64decode(text), "big")


def _hashed(name: str) -> Callable[[memoryview], str]:
    return lambda body: base64.b64encode(hashlib.new(name, body).digest()).decode()


CALCULATED: dict[str, Callable[[memoryview], str]] = {
    "x-amz-checksum-crc32": lambda body: base64_of(zlib.crc32(body), 4),
    "x-amz-checksum-crc32c": lambda body: base64_of(crc32c(body), 4),
    "x-amz-checksum-crc64nvme": lambda body: base64_of(crc64nvme(body), 8),
    "x-amz-checksum-sha1": _hashed("sha1"),
    "x-amz-checksum-sha256": _hashed("sha256"),
    "content-md5": _hashed("md5"),
    "crc32c": lambda body: base64_of(crc32c(body), 4),
    "md5": _hashed("md5"),
}
"""Each checksum by the header that carries it, and by its name in ``x-goog-hash`` and in JSON."""


def check_body(body: memoryview, expected: dict[str, str]) -> None:
    """Refuses a body whose checksums differ from the expected ones; other names are no checksums."""
    for name, value in expected.items():
        if name in CALCULATED and CALCULATED[name](body) != value:
            told = name.removeprefix("x-amz-checksum-").upper()
            raise RefusedRequestError(
                msgspec.structs.replace(BAD_DIGEST, message=BAD_DIGEST.message.format(told))
            )


def google_hashes(header: str) -> dict[str, str]:
    """``crc32c=…,md5=…`` of a header ``x-goog-hash``."""
    pairs = (part.strip().partition("=") for part in header.split(",") if part)
    return {name: value for name, _, value in pairs}
