"""Receipt: the weights from which others were made, and the rules. ``identity.receipt.json`` lies beside the target's identity.

A receipt is the converter's word: the rules are recorded as they were applied, so that ``reshard verify --receipt`` can apply them
again. It has no time and no path: the same conversion gives the same bytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
from msgspec import UNSET, Struct, UnsetType

from reshard.errors import MissingError, ReshardError
from reshard.formats.names import RECEIPT_NAME
from reshard.formats.safe_json import read_bytes
from reshard.identity.identity_file import Versioned, parse_versioned
from reshard.identity.leaf_tree import is_root
from reshard.layout.changes import Changes
from reshard.maps.given_map import GivenMap, map_of
from reshard.storage.location import Location
from reshard.version import __version__

FORMAT = "reshard weights receipt"
VERSION = 1

_KIND = Versioned(
    FORMAT,
    VERSION,
    "a receipt",
    "reshard convert",
    "restore the file from a copy, or convert anew (identity)",
)


class Receipt(Struct, frozen=True):
    """The weights from which others were made, and the rules.

    Attributes:
        source: root of the weights that were converted, 64 hex digits.
        target: root of the weights that were made.
        reshard: the version that made it.
        changes: the rules, as written; those of a layout file first.
        given_map: the map; None without one.
    """

    source: str
    target: str
    reshard: str
    changes: Changes = Changes()
    given_map: GivenMap | None = None


class _Map(Struct, frozen=True, forbid_unknown_fields=True):
    """A map, as ``GivenMap.plain`` has it.

    Attributes:
        map: the content of its file; a text would be taken for a path.
    """

    map: dict[str, Any]
    reverse: bool
    sizes: dict[str, int]


class _Document(Struct, frozen=True, forbid_unknown_fields=True):
    """The content of ``identity.receipt.json``."""

    format: str
    version: int
    reshard: str
    source: str
    target: str
    select: tuple[str, ...]
    drop: tuple[str, ...]
    rename: tuple[tuple[str, str], ...]
    cast: tuple[tuple[str, str], ...]
    map: _Map | UnsetType = UNSET


def render_receipt(
    source: str, target: str, changes: Changes, by: Mapping[str, Any] | None
) -> bytes:
    """``identity.receipt.json``: the same bytes for the same conversion. ``by``: the map, as ``GivenMap.plain`` has it."""
    document = _Document(
        FORMAT,
        VERSION,
        __version__,
        source,
        target,
        changes.select,
        changes.drop,
        changes.rename,
        changes.cast,
        UNSET if by is None else msgspec.convert(by, _Map),
    )
    text = msgspec.json.encode(document, order="deterministic")
    return msgspec.json.format(text, indent=1) + b"\n"


def read_receipt(place: Location) -> Receipt:
    """The receipt in a file, or in a folder.

    Raises MissingError where there is none, CorruptError, naming the file, where it is damaged, FormatError where another program or
    a newer version wrote it.
    """
    file = place / RECEIPT_NAME if place.is_folder() else place
    if not file.exists():
        raise MissingError(
            f"{file} does not exist: expected the receipt that a conversion writes beside an identity, where its source records one; "
            "name the file, or the folder that has it (receipt)"
        )
    return parse_receipt(read_bytes(file), str(file))


def parse_receipt(data: bytes, where: str) -> Receipt:
    """The content of an ``identity.receipt.json``; errors as for ``read_receipt``."""
    document = parse_versioned(data, where, _KIND, _Document)
    for problem in _problems(document):
        raise _KIND.damaged(where, problem)
    return Receipt(
        document.source,
        document.target,
        document.reshard,
        Changes(document.select, document.drop, document.rename, document.cast),
        None if document.map is UNSET else _map(document.map, where),
    )


def _problems(document: _Document) -> Iterator[str]:
    for what in ("source", "target"):
        if not is_root(getattr(document, what)):
            yield f"its {what} is {getattr(document, what)[:80]!r}; expected 64 hex digits"


def _map(found: _Map, where: str) -> GivenMap | None:
    try:
        return map_of(found.map, found.sizes, found.reverse)
    except ReshardError as error:
        raise _KIND.damaged(where, f"its map is none ({error})") from None
