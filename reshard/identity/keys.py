"""Keys that sign an identity, and those that check it: Ed25519, or ECDSA on P-256 with SHA-256, from PEM files."""

from __future__ import annotations

import hashlib
import re
from typing import Any

from msgspec import Struct

from reshard.errors import FormatError, MissingPackageError
from reshard.formats.safe_json import read_bytes
from reshard.storage.location import Location
from reshard.version import how_to_install

MAX_KEY_BYTES = 64 << 10

_PRIVATE = re.compile(
    rb"-----BEGIN ([A-Z ]*PRIVATE KEY)-----((?!-----).)*-----END \1-----", re.DOTALL
)

_KINDS = "expected Ed25519 or ECDSA on P-256"


class PublicKey(Struct, frozen=True):
    """A key that checks signatures.

    Attributes:
        id: SHA-256 of its DER (SubjectPublicKeyInfo), 64 hex digits.
    """

    id: str
    key: Any

    def has_signed(self, data: bytes, signature: bytes) -> bool:
        """True if a signature of ``data`` was made with its private key."""
        from cryptography.exceptions import InvalidSignature
        from cryptography.hazmat.primitives.asymmetric import ec, ed25519
        from cryptography.hazmat.primitives.hashes import SHA256

        try:
            if isinstance(self.key, ed25519.Ed25519PublicKey):
                self.key.verify(signature, data)
            else:
                self.key.verify(signature, data, ec.ECDSA(SHA256()))
        except InvalidSignature:
            return False
        return True


class PrivateKey(Struct, frozen=True):
    """A key that signs.

    Attributes:
        id: of its public key.
    """

    id: str
    key: Any

    def sign(self, data: bytes) -> bytes:
        """The signature of ``data``: 64 bytes of Ed25519, or ECDSA's in DER."""
        from cryptography.hazmat.primitives.asymmetric import ec, ed25519
        from cryptography.hazmat.primitives.hashes import SHA256

        if isinstance(self.key, ed25519.Ed25519PrivateKey):
            return self.key.sign(data)
        signature: bytes = self.key.sign(data, ec.ECDSA(SHA256()))
        return signature


def read_private_key(place: Location) -> PrivateKey:
    """The private key in a PEM file.

    Its public part may lie beside it. Raises FormatError for an encrypted one, a public one alone, and one of another kind; StorageError
    where it cannot be read.
    """
    serialization = _serialization()
    data = read_bytes(place, MAX_KEY_BYTES)
    if (private := _PRIVATE.search(data)) is not None:
        data = private[0]
    elif b"PUBLIC KEY-----" in data:
        raise FormatError(f"{place} holds a public key; signing needs the private one")
    try:
        key = serialization.load_pem_private_key(data, password=None)
    except TypeError:
        raise FormatError(
            f"the key in {place} is encrypted; write it without a password into a file that only you can read "
            "(openssl pkey -in KEY -out PLAIN)"
        ) from None
    except (ValueError, _unsupported()) as error:
        raise _no_key(place, "a private key", error) from None
    return PrivateKey(_id_of(_checked(key.public_key(), place)), key)


def read_public_key(place: Location) -> PublicKey:
    """The public key in a PEM file; FormatError for a private one, and for one of another kind."""
    return public_key_of(read_bytes(place, MAX_KEY_BYTES), str(place))


def public_key_of(data: bytes, place: str) -> PublicKey:
    """The public key in the content of a PEM file; ``place`` names it in errors, which are those of ``read_public_key``."""
    serialization = _serialization()
    _refuse_private(data, place)
    try:
        key = serialization.load_pem_public_key(data)
    except (ValueError, _unsupported()) as error:
        raise _no_key(place, "a public key", error) from None
    return PublicKey(_id_of(_checked(key, place)), key)


def public_text(place: Location) -> str:
    """The content of a PEM file with a public key, which another host will read; FormatError for a private one."""
    data = read_bytes(place, MAX_KEY_BYTES)
    _refuse_private(data, str(place))
    return data.decode("ascii", errors="replace")


def _refuse_private(data: bytes, place: str) -> None:
    if b"PRIVATE KEY" in data.upper():
        raise FormatError(
            f"{place} holds a private key; checking needs the public one (openssl pkey -in KEY -pubout -out PUB)"
        )


def _serialization() -> Any:
    try:
        from cryptography.hazmat.primitives import serialization
    except ImportError:
        raise MissingPackageError(
            f"signatures need the package cryptography, which is not installed; {how_to_install('identity')}"
        ) from None
    return serialization


def _unsupported() -> type[Exception]:
    from cryptography.exceptions import UnsupportedAlgorithm

    return UnsupportedAlgorithm


def _checked(key: Any, place: Location | str) -> Any:
    """A public key, if it is of a supported kind; else FormatError."""
    from cryptography.hazmat.primitives.asymmetric import ec, ed25519

    if isinstance(key, ed25519.Ed25519PublicKey):
        return key
    if isinstance(key, ec.EllipticCurvePublicKey):
        if isinstance(key.curve, ec.SECP256R1):
            return key
        found = f"ECDSA on {key.curve.name}"
    else:
        found = type(key).__name__.lstrip("_").removesuffix("PublicKey")
    raise FormatError(
        f"the key in {place} is of the kind {found}; {_KINDS}: make one with openssl genpkey -algorithm ed25519"
    )


def _id_of(key: Any) -> str:
    serialization = _serialization()
    der: bytes = key.public_bytes(
        serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    return hashlib.sha256(der).hexdigest()


def _no_key(place: Location | str, what: str, error: Exception) -> FormatError:
    return FormatError(
        f"{place} does not hold {what} in PEM ({str(error)[:100] or type(error).__name__}); {_KINDS}"
    )
