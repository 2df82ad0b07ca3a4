"""The msgpack file ``checkpoint`` of an item by Orbax before 0.6, and by Flax of that time.

It holds the tree. A leaf is its own value, where it was saved with ``SaveArgs(aggregate=True)``, as Flax's
``save_args_from_target`` asks for arrays of one device; else it is the text ``PLACEHOLDER://`` and the name of its array's folder.
Before 0.4.2 there is no ``_METADATA``, so that only this file has the tree.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from msgspec import Struct

from reshard.errors import FormatError
from reshard.formats.leaf_paths import Path
from reshard.formats.msgpack.cursor import MsgpackCursor, first_bytes
from reshard.formats.msgpack.tree import MsgpackTree, Value
from reshard.storage.location import Location

AGGREGATE = "checkpoint"

_PLACEHOLDER = re.compile(r"(?:PLACEHOLDER|AGGREGATED)://", re.ASCII)

_TREE = re.compile(
    rb"[\x81-\x8f][\xa0-\xbf\xd9-\xdb]|\xde..[\xa0-\xbf\xd9-\xdb]|\xdf....[\xa0-\xbf\xd9-\xdb]|[\x91-\x9f\xdc\xdd]|[\xc7-\xc9\xd4-\xd8]",
    re.DOTALL,
)
"""A map whose first key is text, an array, or Orbax's tuple. TensorFlow has a file of this name too, which is text; a pickle begins
with the byte of an empty map."""


class Aggregate(Struct, frozen=True):
    """The content of the file.

    Attributes:
        file: the text of its location.
        version: of the file, where its store names contents.
        values: each leaf's value or placeholder, in the order of the file.
    """

    file: str
    version: str
    values: dict[Path, Value]


def is_aggregate(folder: Location) -> bool:
    """True if a folder has the file, with a tree in it."""
    file = folder / AGGREGATE
    found = file.status()
    if found is None or found.kind != "file":
        return False
    return _TREE.match(first_bytes(file, found)) is not None


def read_aggregate(folder: Location) -> Aggregate | None:
    """The content of the file; None where there is none, or none with a tree in it.

    Raises CorruptError for damage, FormatError for an unsupported feature.
    """
    if not is_aggregate(folder):
        return None
    file = folder / AGGREGATE
    found = file.status()
    version = found.version if found is not None else ""
    values = dict(_leaves(file))
    _refuse_t5x(values, str(file))
    return Aggregate(str(file), version, values)


def count_values(folder: Location) -> int:
    """The number of leaves in the file; 0 where there is none."""
    return sum(1 for _ in _leaves(folder / AGGREGATE)) if is_aggregate(folder) else 0


def _leaves(file: Location) -> Iterator[tuple[Path, Value]]:
    found = file.status()
    if found is None:
        return iter(())
    return iter(MsgpackTree(MsgpackCursor(file, found)))


def placeholder_name(value: Value) -> str | None:
    """The name of the array that a placeholder stands for; None for any other value."""
    match = _PLACEHOLDER.match(value) if isinstance(value, str) else None
    return None if match is None or not isinstance(value, str) else value[match.end() :]


def _refuse_t5x(values: dict[Path, Value], where: str) -> None:
    """Refuses the file of the same name by T5X, whose leaves are specs of TensorStore in place of arrays."""
    names = [tuple(key.key for key in path) for path in values]
    is_state = ("version",) in names and any(name[:2] == ("optimizer", "target") for name in names)
    if is_state or any(name[-2:] == ("kvstore", "driver") for name in names):
        raise FormatError(
            f"{where} is the state of a checkpoint of T5X, which is not read: its arrays are specs of TensorStore; restore it with T5X and "
            "save it with Orbax"
        )
