"""The hashes of an identity, version 1: BLAKE3, keyed by a public constant for each kind.

The hashed bytes (numbers are u64, little-endian; a text is its length and its UTF-8)::

    leaf      the row-major little-endian bytes of a tile
    node      left, right
    tensor    name, dtype, rank, shape, top
    root      count, the tensors' hashes in the order of their names' bytes
    contents  count, each different (dtype, rank, shape, top) in the order of its bytes
    rest      count, each other leaf as name, kind, value, in the order of their bytes
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import cache
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from reshard.errors import FormatError, MissingPackageError, PlanError
from reshard.version import how_to_install

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Bytes = bytes | npt.NDArray[np.uint8]

HASH_BYTES = 32
_ROOT = re.compile(r"[0-9a-f]{64}")

_CONTEXT = "reshard 2026 weights-identity v1 "


def keyed(kind: str) -> Any:
    """A hasher of one of the kinds: ``leaf``, ``node``, ``tensor``, ``root``, ``contents`` or ``rest``."""
    return _blake3()(key=_key(kind))


@cache  # it is asked for at each leaf
def _blake3() -> Any:
    check_installed()
    from blake3 import blake3

    return blake3


@cache
def _key(kind: str) -> bytes:
    key: bytes = _blake3()(b"", derive_key_context=_CONTEXT + kind).digest()
    return key


def is_root(text: str) -> bool:
    """True if a text has the form of a root, which a tensor's top has too: 64 hex digits in lower case."""
    return _ROOT.fullmatch(text) is not None


def checked_root(what: str, given: object) -> str:
    """A root in lower case; PlanError, naming what was given, for anything else."""
    root = given.lower() if isinstance(given, str) else ""
    if not is_root(root):
        raise PlanError(
            f"the {what} is {given!r}; expected a root of 64 hex digits, as reshard identify shows it"
        )
    return root


def is_installed() -> bool:
    """True if the package that hashes is there."""
    return find_spec("blake3") is not None


def check_installed() -> None:
    """Raises MissingPackageError where the package that hashes is missing, before anything is read."""
    try:
        import blake3  # noqa: F401  whether it is there
    except ImportError:
        raise MissingPackageError(
            f"an identity is made of BLAKE3, and the package blake3 is not installed; {how_to_install('identity')}"
        ) from None


def hash_of(kind: str, data: Bytes) -> bytes:
    """The hash of some bytes as one of the kinds."""
    found: bytes = _blake3()(data, key=_key(kind)).digest()
    return found


def folded(hashes: bytes, level: int) -> bytes:
    """The hashes of a level of a tree, given those of the level ``2 ** n`` times as wide: they are joined in pairs."""
    blake3, key = _blake3(), _key("node")
    while len(hashes) > HASH_BYTES << level:
        pairs = range(0, len(hashes), 2 * HASH_BYTES)
        hashes = b"".join([blake3(hashes[i : i + 2 * HASH_BYTES], key=key).digest() for i in pairs])
    return hashes


def identity_entry(dtype: str, shape: Sequence[int], top: bytes) -> bytes:
    """The bytes that are hashed for a tensor besides its name."""
    return b"".join([_text(dtype), _number(len(shape)), *map(_number, shape), top])


def root_of(entries: Iterable[tuple[str, bytes]]) -> bytes:
    """The root over tensors: the name of each, and its ``identity_entry``."""
    named = sorted((_utf8(name), entry) for name, entry in entries)
    tensors = [hash_of("tensor", _sized(name) + entry) for name, entry in named]
    return hash_of("root", _number(len(tensors)) + b"".join(tensors))


def contents_of(entries: Iterable[bytes]) -> bytes:
    """The root without names, of the tensors' entries; equal ones count once."""
    different = sorted(set(entries))
    return hash_of("contents", _number(len(different)) + b"".join(different))


def rest_of(leaves: Iterable[tuple[str, str, str]]) -> bytes:
    """The digest of the leaves that are no tensors: name, kind and value of each."""
    texts = sorted(b"".join(map(_text, leaf)) for leaf in leaves)
    return hash_of("rest", _number(len(texts)) + b"".join(texts))


def _number(value: int) -> bytes:
    return value.to_bytes(8, "little")


def _text(text: str) -> bytes:
    return _sized(_utf8(text))


def _sized(data: bytes) -> bytes:
    return _number(len(data)) + data


def _utf8(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise FormatError(
            f"{text!r} cannot be written in UTF-8, in which an identity hashes names; rename it (rename)"
        ) from None
