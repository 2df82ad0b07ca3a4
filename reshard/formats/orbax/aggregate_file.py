"""The msgpack file ``checkpoint`` of an item by Orbax before 0.6, and by Flax of that time.

It holds the tree. A leaf is its own value, where it was saved with ``SaveArgs(aggregate=True)``, as Flax's
``save_args_from_target`` asks for arrays of one device; else it is the text ``PLACEHOLDER://`` and the name of its array's folder.
Before 0.4.2 there is no ``_METADATA``, so that only this file has the tree.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from msgspec import Struct

from reshard.errors import FormatError
from reshard.formats.contents import PathKey
from reshard.formats.leaf_paths import Path
from reshard.formats.limits import MAX_ALL_NAMES_CHARACTERS, MAX_LEAVES, MAX_PATH_KEYS
from reshard.formats.marks import AGGREGATE
from reshard.formats.orbax.msgpack_values import (
    CHUNKED,
    TUPLE,
    ArrayBytes,
    Header,
    MsgpackCursor,
    MsgpackKind,
    check_end,
    first_bytes,
    read_chunked,
    read_extension,
)
from reshard.storage.location import Location

Value = ArrayBytes | complex | float | int | bool | str | dict[str, Any] | list[Any] | tuple[()] | None  # fmt: skip
"""A leaf's value; of containers only empty ones are leaves."""


class _Container:
    """A map or an array whose entries are being read.

    Attributes:
        characters: of its name.
        keys: those that were read, of a map; None for an array.
        end: the offset behind its ext, for a tuple.
    """

    __slots__ = ("characters", "end", "entries", "keys", "left", "path")

    def __init__(self, path: Path, entries: int, is_map: bool, end: int | None) -> None:
        self.path = path
        self.characters = sum(len(key.key) + 1 for key in path)
        self.entries = self.left = entries
        self.keys: set[str] | None = set() if is_map else None
        self.end = end


class MsgpackTree:
    """Iterates over the leaves of the tree in a file, and expects that the file ends with it.

    Raises CorruptError for damage, FormatError for unsupported features and for sizes beyond any real tree.
    """

    def __init__(self, cursor: MsgpackCursor) -> None:
        self._cursor = cursor
        self._open: list[_Container] = []
        self._known: dict[tuple[str, bool], PathKey] = {}
        self._values = self._characters = 0

    def __iter__(self) -> Iterator[tuple[Path, Value]]:
        yield from self._value(())
        while self._open:
            top = self._open[-1]
            if not top.left:
                self._close(top)
                continue
            top.left -= 1
            key = self._key(top)
            self._count(top.characters + len(key))
            if key == CHUNKED and top.keys == {CHUNKED}:
                self._open.pop()
                yield top.path, read_chunked(self._cursor, top.entries)
                continue
            yield from self._value((*top.path, self._path_key(key, top.keys is None)))
        if self._cursor.at != self._cursor.end:
            raise self._cursor.corrupt("more bytes after the end of the tree")

    def _close(self, top: _Container) -> None:
        if top.end is not None:
            check_end(self._cursor, top.end)
        self._open.pop()

    def _key(self, top: _Container) -> str:
        if top.keys is None:
            return str(top.entries - top.left - 1)
        header = self._cursor.header()
        if header.kind != "str":
            raise FormatError(
                f"{self._cursor.where}, byte {self._cursor.at:,}: a key of {_shown(top.path)} is of the type {header.kind}; expected text, "
                "as Orbax writes and reads; save the checkpoint again with keys that are text"
            )
        key = self._cursor.text(header.size)
        if key in top.keys:
            raise self._cursor.corrupt(f"{_shown(top.path)} has the key {key!r} twice")
        top.keys.add(key)
        return key

    def _path_key(self, key: str, is_sequence: bool) -> PathKey:
        return self._known.setdefault((key, is_sequence), PathKey(key, is_sequence))

    def _value(self, path: Path) -> Iterator[tuple[Path, Value]]:
        """Opens the container here, or gives the leaf."""
        if len(path) > MAX_PATH_KEYS:
            raise FormatError(
                f"{self._cursor.where} nests {len(path)} levels deep; at most {MAX_PATH_KEYS} are read"
            )
        header, end = self._cursor.header(), None
        kind: MsgpackKind | str = header.kind
        if kind == "ext" and header.code == TUPLE:
            end, kind = self._cursor.at + header.size, "tuple"
            header = self._cursor.header()
            if header.kind != "array":
                raise self._cursor.corrupt(
                    f"a tuple should be an array, but is of the type {header.kind}"
                )
        if kind not in ("map", "array", "tuple"):
            yield path, self._leaf(path, header)
        elif header.size:
            self._open.append(_Container(path, header.size, kind == "map", end))
        else:
            if end is not None:
                check_end(self._cursor, end)
            yield path, {} if kind == "map" else [] if kind == "array" else ()

    def _count(self, characters: int) -> None:
        """Counts a value, and the characters of its name or its text."""
        self._values += 1
        self._characters += characters
        for most, found, what in (
            (MAX_LEAVES, self._values, "values"),
            (MAX_ALL_NAMES_CHARACTERS, self._characters, "characters of names and strings"),
        ):
            if found > most:
                raise FormatError(
                    f"{self._cursor.where} has more than {most:,} {what}, which is more than is read"
                )

    def _leaf(self, path: Path, header: Header) -> Value:
        if header.kind == "str":
            self._count(header.size)
            return self._cursor.text(header.size)
        if header.kind == "bin":
            raise FormatError(
                f"{self._cursor.where}: the leaf {_shown(path)} is of the type bytes, which is not supported; leave it out in the "
                "program that saves the checkpoint, or save it as an array of uint8"
            )
        if header.kind == "ext":
            return read_extension(self._cursor, header)
        return header.value


def _shown(path: Path) -> str:
    return repr("/".join(key.key for key in path)) if path else "the tree"


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
