"""The leaves of a distributed checkpoint of torch: its tensors and values by their paths in the tree that was saved.

A value that torch stored as one item, such as ``betas`` of an optimizer, is a branch of the tree: each of its numbers and texts is a
leaf. Numbers are tensors without dimensions, as everywhere here. Any other value is a leaf that names its kind.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from reshard.errors import FormatError
from reshard.formats.contents import Carried, CarriedPart, Extent, Leaf, PathKey
from reshard.formats.dcp.files import FORMAT
from reshard.formats.dcp.items import StoredValue
from reshard.formats.dcp.metadata import Entries, ItemPlace, TensorEntry, ValueEntry
from reshard.formats.limits import MAX_LEAVES
from reshard.formats.torch.plain_value import (
    TUPLES_KEY,
    Unread,
    tensor_leaf,
    unread_leaf,
    value_leaf,
)
from reshard.geometry.dtypes import element_of
from reshard.geometry.grid import Box

MOST_CARRIED_BYTES = 64 << 20
"""Of an archive of a value that is not read; it is in memory while it is copied."""


class TreeLeaf(Struct, frozen=True):
    """A leaf and its content.

    Attributes:
        entry: the tensor in pieces; None for another value.
        number: dtype and bytes of a number; None for anything else.
        path: the file that it is in, for a number.
        is_checked: True if the CRC of that number's pickle was compared.
    """

    leaf: Leaf
    entry: TensorEntry | None = None
    number: tuple[str, bytes] | None = None
    path: str = ""
    is_checked: bool = False


def tree_of(entries: Entries, values: Mapping[str, StoredValue], where: str) -> list[TreeLeaf]:
    """Every leaf, in the order of the entries; ``values``: the content of each entry that is no tensor.

    Raises FormatError for two leaves with the same name, for a leaf below another, and for too many.
    """
    found: dict[str, TreeLeaf] = {}
    for entry in entries.entries.values():
        path = entries.paths.get(entry.name) or (PathKey(entry.name),)
        for one in _leaves(entry, path, values):
            first = found.setdefault(one.leaf.name, one)
            if first is not one:
                raise FormatError(
                    f"{where}: two leaves are named {one.leaf.name[:200]!r} once their keys are joined, such as {entry.name[:200]!r}; rename "
                    "one where the checkpoint is saved"
                )
        if len(found) > MAX_LEAVES:
            raise FormatError(f"{where} has more than {MAX_LEAVES:,} leaves, the most that is read")
    _refuse_nested([one.leaf for one in found.values()], where)
    return list(found.values())


def _refuse_nested(leaves: Sequence[Leaf], where: str) -> None:
    """A leaf with others below it cannot be in one tree with them."""
    keys = {leaf.name: tuple(key.key for key in leaf.path) for leaf in leaves}
    whole = set(keys.values())
    for name, path in keys.items():
        for depth in range(1, len(path)):
            if path[:depth] in whole:
                raise FormatError(
                    f"{where}: the leaf {name[:200]!r} is below {'/'.join(path[:depth])[:200]!r}, which is a leaf itself; rename one where the "
                    "checkpoint is saved"
                )


def _leaves(
    entry: TensorEntry | ValueEntry, path: tuple[PathKey, ...], values: Mapping[str, StoredValue]
) -> Iterator[TreeLeaf]:
    if isinstance(entry, TensorEntry):
        yield TreeLeaf(tensor_leaf(path), entry)
        return
    stored = values[entry.name]
    if isinstance(stored.values, Unread):
        more: dict[str, Any] = {}
        if not entry.unread and entry.places[0].nbytes <= MOST_CARRIED_BYTES:
            more["carried"] = _carried(entry.places[0], stored)
        digest = stored.digest or str(entry.places[0])
        yield TreeLeaf(unread_leaf(path, stored.values, digest, **more))
        return
    for below, value, tuples in stored.values:
        leaf = value_leaf((*path, *below), value)
        if below:
            leaf = replace(leaf, meta={**leaf.meta, TUPLES_KEY: tuples})
        yield _value_leaf(leaf, value, stored)


def _carried(place: ItemPlace, stored: StoredValue) -> Carried:
    """The place of a value's archive, which a distributed checkpoint takes as it is."""
    extent = Extent(stored.path, place.offset, place.nbytes, version=stored.version)
    return Carried(FORMAT, (CarriedPart(extent, Box.full(())),))


def _value_leaf(leaf: Leaf, value: Any, stored: StoredValue) -> TreeLeaf:
    if not leaf.tensor:
        return TreeLeaf(leaf)
    return TreeLeaf(leaf, None, element_of(value), stored.path, bool(stored.digest))


def largest_carried(leaves: Sequence[TreeLeaf]) -> int:
    """Bytes of the largest archive that a target may get as it is, which is then in memory."""
    found = (one.leaf.carried for one in leaves if one.leaf.carried)
    return max((part.extent.length for carried in found for part in carried.parts), default=0)
