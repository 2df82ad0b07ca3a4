"""The files of an identity: ``identity.json`` (root and tensors) and ``identity.tree`` (hashes of nodes).

``identity.tree`` is a line that names it, then for each tensor, in the order of ``identity.json``, the hashes of the nodes of
``LeafTree.kept_level``, 32 bytes each. Their number follows from shapes and dtypes, so that its length is known
before it is read. Neither file counts as a part of the checkpoint beside which it lies.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterator
from contextlib import closing
from typing import TypeVar

import msgspec
from msgspec import Struct

from reshard.errors import CorruptError, FormatError
from reshard.formats.names import IDENTITY_NAME, TREE_NAME
from reshard.formats.safe_json import checked_text, read_bytes, refuse_many_values
from reshard.geometry.dtypes import is_known, storage_bytes
from reshard.identity.leaf_tree import (
    HASH_BYTES,
    KEPT_BYTES,
    LeafTree,
    folded,
    is_root,
    kept_level_of,
)
from reshard.identity.weights_identity import TensorIdentity, WeightsIdentity
from reshard.storage.location import Location, locate

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


FORMAT = "reshard weights identity"
VERSION = 1

_TREE_HEAD = b"reshard weights identity tree, version 1\n"
_OTHER_TREE = re.compile(rb"reshard weights identity tree, version (\d+)")
_REMEDY = "restore the file from a copy, or make it anew with reshard identify"
_KIND = Versioned(FORMAT, VERSION, "an identity", "reshard identify", _REMEDY)
_CRC = re.compile(r"[0-9a-f]{16}")
_KEY_DTYPE = "uint32"
"""Dtype of the data of PRNG keys."""

_MOST_TREE_BYTES = 1 << 30

_MAX_RANK = 64
_MAX_SIZE = 1 << 62
"""Limit of a dimension, and of the bytes of a tensor."""


class _Document(Struct, frozen=True, forbid_unknown_fields=True):
    """The content of ``identity.json``."""

    format: str
    version: int
    root: str
    contents: str
    rest: str
    tensors: tuple[TensorIdentity, ...]


def render_identity(found: WeightsIdentity) -> bytes:
    """``identity.json``: the same bytes for the same identity."""
    document = _Document(
        FORMAT, VERSION, found.root, found.contents, found.rest, tuple(found.tensors.values())
    )
    return msgspec.json.format(msgspec.json.encode(document), indent=1) + b"\n"


def render_tree(found: WeightsIdentity) -> bytes:
    """``identity.tree``."""
    return _TREE_HEAD + b"".join([found.nodes[name] for name in found.tensors])


def folder_of_identity(given: str) -> Location:
    """The folder at a path, or the folder of the ``identity.json`` at that path."""
    place = locate(given)
    return place.parent if place.name == IDENTITY_NAME else place


def how_to_record(checkpoint: str) -> str:
    """The remedy for a checkpoint that records no identity: one that is no folder has no place for the files."""
    if locate(checkpoint).is_folder():
        return "record it with reshard identify --write"
    return (
        "only a folder has a place for one: convert it into a folder with its identity "
        '(identity="compute")'
    )


def read_identity(folder: Location, *, with_tree: bool = False) -> WeightsIdentity | None:
    """The identity that is recorded in a folder; None where there is none.

    Raises CorruptError, naming the file, where it is damaged or does not fit itself, FormatError where another program or a newer
    version wrote it.
    """
    place = folder / IDENTITY_NAME
    if not place.exists():
        return None
    found = parse_identity(read_bytes(place), str(place))
    return with_nodes(folder, found) if with_tree else found


def with_nodes(folder: Location, found: WeightsIdentity) -> WeightsIdentity:
    """An identity with its nodes; errors as for ``read_nodes``."""
    nodes = read_nodes(folder, found, found.tensors.keys())
    return WeightsIdentity(found.root, found.contents, found.rest, found.tensors, nodes)


def parse_identity(data: bytes, where: str) -> WeightsIdentity:
    """The content of an ``identity.json``, without the nodes; errors as for ``read_identity``."""
    document = parse_versioned(data, where, _KIND, _Document)
    for problem in _problems(document):
        raise _KIND.damaged(where, problem)
    found = WeightsIdentity.of(document.tensors, {}, document.rest)
    for what in ("root", "contents"):
        if getattr(found, what) != getattr(document, what):
            raise _KIND.damaged(
                where,
                f"its {what} is {getattr(document, what)}, but its tensors give {getattr(found, what)}",
            )
    return found


def _problems(document: _Document) -> Iterator[str]:
    for what in ("root", "contents", "rest"):
        if not is_root(getattr(document, what)):
            yield f"its {what} is {getattr(document, what)[:80]!r}; expected 64 hex digits"
    if len({tensor.name for tensor in document.tensors}) < len(document.tensors):
        yield "a tensor is listed twice"
    for tensor in document.tensors:
        if not is_root(tensor.top) or not _CRC.fullmatch(tensor.crc64nvme):
            yield f"the hashes of {tensor.name!r} are not hex digits"
        if not _is_shape(tensor):
            yield f"the shape of {tensor.name!r} is {str(tensor.shape)[:80]}"


def _is_shape(tensor: TensorIdentity) -> bool:
    """True if a tensor may have its shape. Each size is bounded too: one that is 0 makes the product 0."""
    if len(tensor.shape) > _MAX_RANK or not all(0 <= n < _MAX_SIZE for n in tensor.shape):
        return False
    return math.prod(tensor.shape) * storage_bytes(hashed_dtype(tensor)) < _MAX_SIZE


def kept_nodes(tensor: TensorIdentity) -> int:
    """The number of hashes that ``identity.tree`` has of a tensor."""
    return 1 << kept_level_of(tensor.shape, storage_bytes(hashed_dtype(tensor)), KEPT_BYTES)


def hashed_dtype(tensor: TensorIdentity) -> str:
    """The dtype of the elements that are hashed; of a PRNG key that of its data."""
    return tensor.dtype if is_known(tensor.dtype) else _KEY_DTYPE


def tree_of_identity(tensor: TensorIdentity) -> LeafTree:
    """The tree of a tensor of an identity. Its shape must be known to be right: the tree takes memory for its cuts."""
    return LeafTree.of(tensor.shape, storage_bytes(hashed_dtype(tensor)))


def read_nodes(
    folder: Location, found: WeightsIdentity, names: Collection[str]
) -> dict[str, bytes]:
    """The nodes of some of its tensors, which must give the tops of ``identity.json``; reads no more of the file.

    Raises CorruptError where the file is missing or damaged, FormatError where it is of another version or too large.
    """
    place = folder / TREE_NAME
    status = place.status()
    if status is None:
        raise CorruptError(f"{place} is missing; {_REMEDY}")
    nodes: dict[str, bytes] = {}
    with closing(place.open()) as file:
        _check_head(file.read(0, min(len(_TREE_HEAD), status.nbytes)), str(place))
        counts = _counts(found, status.nbytes, str(place))
        offset = len(_TREE_HEAD)
        for name, count in counts.items():
            if name in names:
                data = file.read(offset, HASH_BYTES * count)
                if folded(data, 0).hex() != found.tensors[name].top:
                    raise _KIND.damaged(str(place), f"its hashes of {name!r} do not give its top")
                nodes[name] = data
            offset += HASH_BYTES * count
    return nodes


def _counts(found: WeightsIdentity, nbytes: int, where: str) -> dict[str, int]:
    """The number of hashes that a tree of a length has of each tensor; errors as for ``read_nodes``.

    Counting ends with the first tensor that is too much: a hostile ``identity.json`` has many tensors whose count takes long.
    """
    counts: dict[str, int] = {}
    expected = len(_TREE_HEAD)
    for name, tensor in found.tensors.items():
        counts[name] = kept_nodes(tensor)
        expected += HASH_BYTES * counts[name]
        if expected > nbytes:
            raise _KIND.damaged(
                where,
                f"it has {nbytes:,} bytes, but the tensors of {IDENTITY_NAME} have {expected:,} or more",
            )
        if expected > _MOST_TREE_BYTES:  # a hostile file may be sparse, and cost its writer nothing
            raise FormatError(
                f"{where} has {nbytes:,} bytes, and at most {_MOST_TREE_BYTES:,} are read, which is the tree of 32 TiB of weights; "
                "identify the checkpoint in parts (item)"
            )
    if nbytes != expected:
        raise _KIND.damaged(
            where, f"it has {nbytes:,} bytes, but the tensors of {IDENTITY_NAME} have {expected:,}"
        )
    return counts


def _check_head(head: bytes, where: str) -> None:
    if head == _TREE_HEAD:
        return
    other = _OTHER_TREE.match(head)
    if other is None:
        raise _KIND.damaged(where, "it does not begin as version 1 does")
    raise FormatError(
        f"{where} has version {int(other[1])} of the tree of a {FORMAT}, and this reshard reads version {VERSION}; install a newer "
        "reshard"
    )


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
