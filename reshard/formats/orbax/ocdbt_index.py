"""Where each value of an OCDBT database lies, found without reading values.

A database is a manifest that names the root of a B-tree of nodes in data files
(https://google.github.io/tensorstore/kvstore/ocdbt/index.html). ``tensorstore.ocdbt.dump`` decodes
one node, checks its CRC, and gives locations as text::

    value:<base path>:<relative path>:<offset>:<length>        paths are percent-encoded

An entry of an inner node says what prefix the keys below it share; a leaf's keys lack it. Small
values are in the node itself. Nodes are asked for several at a time: 100,000 keys take under a second.

Orbax lets each process write a database of its own (``ocdbt.process_N``) and merges their trees,
not their values, into one manifest at the end. Where that manifest is missing, the union of the
processes' databases is the index.
"""

from __future__ import annotations

import re
from array import array
from bisect import bisect_left
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from reshard.errors import CorruptError, FormatError
from reshard.formats.base import Extent
from reshard.formats.limits import MAX_KEYS, MAX_NODES
from reshard.formats.orbax.file_sizes import FileSizes
from reshard.formats.orbax.inside import Inside
from reshard.formats.orbax.ocdbt_size import check_manifest, count_entries
from reshard.formats.orbax.safe_json import expect, shorten

MANIFEST = "manifest.ocdbt"
PROCESS_PREFIX = "ocdbt.process_"

_DUMPS_IN_FLIGHT = 8
"""Enough to keep the cores busy; a decoded node takes up to 8 MiB, and Orbax allows it 100."""

_ENTRIES_IN_FLIGHT = 1 << 18
"""Large nodes are decoded one after the other: each entry takes up to 1400 bytes meanwhile."""

_DUMPED_BYTES = 1400
"""Memory a key takes while its node is decoded (measured: 257 MiB for 200,000 keys in one node)."""

_MAX_OFFSET = 1 << 62
_MAX_KEY_BYTES = 1 << 16
_NUMBER = re.compile(r"[0-9]{1,19}")

Place = tuple[str, int, int] | bytes
"""Where a value lies: file, offset and length, or the value itself."""


def find_databases(directory: Path) -> list[Path]:
    """The databases of an item: the merged one if it is there, then each process's."""
    merged = [directory] if (directory / MANIFEST).exists() else []
    return merged + [
        p for p in sorted(directory.glob(PROCESS_PREFIX + "*")) if (p / MANIFEST).exists()
    ]


class OcdbtIndex:
    """An index over one or several databases: 28 bytes a value beside its key, found by a bisect.

    Where several hold the same key the first counts, provided that all hold as many bytes under
    it: each process writes its own copy of an array's metadata.
    """

    def __init__(self, databases: Sequence[Path], root: Path | None = None) -> None:
        """Reads the databases; links may lead elsewhere below ``root``, or below the first of them."""
        self.databases = tuple(databases)
        inside = Inside(root or databases[0])
        self._keys: list[bytes] = []
        self._files: list[str] = []
        self._file_of, self._offsets, self._lengths = array("I"), array("Q"), array("Q")
        self._inline: dict[int, bytes] = {}
        read = (
            _read_database(databases[0], inside)
            if len(databases) == 1
            else _union(databases, inside)
        )
        self._pack(read)
        self._sizes = FileSizes(inside)

    def _pack(self, entries: Iterable[tuple[bytes, Place]]) -> None:
        """Keep sorted entries in as little room as Python allows."""
        numbers: dict[str, int] = {}
        carrier = str(self.databases[0] / MANIFEST)
        shared: dict[bytes, bytes] = {}  # layers have equal metadata, which is kept once
        for key, place in entries:
            if self._keys and key <= self._keys[-1]:
                raise CorruptError(
                    f"{self.databases[0]}: the key {shorten(key)} follows {shorten(self._keys[-1])}, "
                    "but a database's keys are sorted; restore the folder from a copy"
                )
            if isinstance(place, bytes):
                self._inline[len(self._keys)] = shared.setdefault(place, place)
                place = (carrier, 0, len(place))
            path, offset, length = place
            self._file_of.append(numbers.setdefault(path, len(numbers)))
            self._offsets.append(offset)
            self._lengths.append(length)
            self._keys.append(key)
        self._files = list(numbers)

    def __len__(self) -> int:
        return len(self._keys)

    @property
    def metadata_bytes(self) -> int:
        """What building the index cost: a node's entries as objects, and their memory stays claimed."""
        return _DUMPED_BYTES * len(self) + sum(map(len, self._keys))

    def find(self, key: str, what: str) -> Extent | None:
        """The value's extent, checked against the size of its file."""
        wanted = key.encode("utf-8", "surrogatepass")
        i = bisect_left(self._keys, wanted)
        if i == len(self._keys) or self._keys[i] != wanted:
            return None
        path, length = self._files[self._file_of[i]], self._lengths[i]
        if (inline := self._inline.get(i)) is not None:
            return Extent(path, 0, length, inline)
        extent = Extent(path, self._offsets[i], length)
        self._sizes.check(extent, what)
        return extent

    def tensorstore_spec(self, key: str, what: str) -> dict[str, Any]:
        """For the one database that holds all of the key's values.

        Raises FormatError, naming ``what``, where the processes' databases were never merged.
        """
        if len(self.databases) > 1:
            raise FormatError(
                f"{what}: its codecs need TensorStore, which cannot read databases that were never "
                f"merged ({self.databases[0].name}, …); let Orbax merge them first"
            )
        path = f"{key}/" if key else ""
        return {"driver": "ocdbt", "base": _file_spec(self.databases[0]), "path": path}


def _union(databases: Sequence[Path], inside: Inside) -> list[tuple[bytes, Place]]:
    """The sorted entries of several databases; the first that has a key counts."""
    places: dict[bytes, Place] = {}
    for database in databases:
        for key, place in _read_database(database, inside):
            known = places.setdefault(key, place)
            if _length(known) != _length(place):
                raise CorruptError(
                    f"{database}: the key {shorten(key)} is in several databases with different "
                    f"values ({_length(known)} and {_length(place)} bytes); expected one writer of "
                    "each chunk"
                )
    return sorted(places.items(), key=lambda entry: entry[0])


def _length(place: Place) -> int:
    return len(place) if isinstance(place, bytes) else place[2]


@dataclass(frozen=True, slots=True)
class _Node:
    """A node still to be decoded: its location and the prefix that its keys lack."""

    location: str
    prefix: bytes


def _read_database(database: Path, inside: Inside) -> Iterator[tuple[bytes, Place]]:
    """Every key of one database with its place, in the tree's order."""
    import tensorstore as ts

    for manifest in sorted(database.glob("manifest*")):
        inside.check(manifest, str(manifest))
        check_manifest(manifest)
    base = ts.KvStore.open(_file_spec(database)).result()
    root = _read_root(database, base)
    if root is None:
        return
    node, expected = root
    if expected > MAX_KEYS:
        raise FormatError(
            f"{database / MANIFEST} counts {expected:,} keys, but at most {MAX_KEYS:,} are read"
        )
    found = 0
    for key, place in _walk(database, base, node, inside):
        found += 1
        if found > expected:
            break
        yield key, place
    if found != expected:
        raise CorruptError(
            f"{database / MANIFEST} counts {expected:,} keys, but its tree has {found:,}{' or more' * (found > expected)}; restore "
            "the folder from a copy"
        )


def _read_root(database: Path, base: Any) -> tuple[_Node, int] | None:
    """The root of the latest version and its number of keys; None for an empty database."""
    import tensorstore as ts

    where = str(database / MANIFEST)
    manifest = expect(_dumped(ts.ocdbt.dump(base), where), dict, "the manifest", where)
    versions = expect(manifest.get("versions"), list, "versions", where)
    if not versions:
        raise FormatError(f"{where} names no version of its database; expected at least one")
    root = expect(versions[-1].get("root"), dict, "the root", where)
    count = expect(root.get("statistics", {}).get("num_keys", 0), int, "num_keys", where)
    if "location" not in root:
        return None
    return _Node(expect(root["location"], str, "the root's location", where), b""), count


def _walk(database: Path, base: Any, root: _Node, inside: Inside) -> Iterator[tuple[bytes, Place]]:
    waiting, running, seen = deque([root]), deque[tuple[_Node, Any, int]](), {root.location}
    in_flight = 0
    while waiting or running:
        while waiting and len(running) < _DUMPS_IN_FLIGHT and in_flight < _ENTRIES_IN_FLIGHT:
            node = waiting.popleft()
            count = _check_node(database, node, inside)
            in_flight += count
            running.append((node, _start_dump(database, base, node), count))
        node, future, count = running.popleft()
        in_flight -= count
        where = f"{database} (node {node.location})"
        fields = expect(_dumped(future, where), dict, "a node", where)
        entries = expect(fields.get("entries"), list, "a node's entries", where)
        entries.reverse()
        while entries:  # popped, so that what is done with is free at once: there may be 100,000
            entry = entries.pop()
            if "location" in entry:
                waiting.append(_child(node, entry, seen, where))
            else:
                yield node.prefix + entry["key"], _place(database, entry, where)


def _child(parent: _Node, entry: Mapping[str, Any], seen: set[str], where: str) -> _Node:
    location = entry["location"]
    if location in seen or len(seen) > MAX_NODES:
        raise CorruptError(
            f"{where}: the node {location} occurs twice in the tree, or there are more than "
            f"{MAX_NODES:,}; the database contradicts itself"
        )
    seen.add(location)
    prefix = parent.prefix + entry.get("subtree_common_prefix", b"")
    if len(prefix) > _MAX_KEY_BYTES:
        raise CorruptError(
            f"{where}: the keys below {location} begin with {len(prefix):,} bytes in common; expected at "
            f"most {_MAX_KEY_BYTES:,}; restore the folder from a copy"
        )
    return _Node(location, prefix)


def _place(database: Path, entry: Mapping[str, Any], where: str) -> Place:
    if "inline_value" in entry:
        return expect(entry["inline_value"], bytes, "an inline value", where)
    return parse_location(
        database, expect(entry.get("indirect_value"), str, "a value's location", where)
    )


def parse_location(database: Path, location: str) -> tuple[str, int, int]:
    """File, offset and length of ``kind:base:relative:offset:length``, below the database's folder.

    Raises CorruptError for a location that leads out of that folder or has absurd numbers.
    """
    parts = location.split(":")
    is_sound = len(parts) == 5 and all(_NUMBER.fullmatch(n) for n in parts[3:])
    path = _data_file(database, parts[1], parts[2]) if is_sound else None
    if path is None:
        raise CorruptError(
            f"{database}: the location {shorten(location)} should name a data file below the "
            "database's folder, an offset and a length, but does not"
        )
    offset, length = int(parts[3]), int(parts[4])
    if offset + length > _MAX_OFFSET:
        raise CorruptError(
            f"{database}: the location {shorten(location)} is beyond the end of any file"
        )
    return path, offset, length


@lru_cache(maxsize=1024)
def _data_file(database: Path, base: str, relative: str) -> str | None:
    """The file's path, one string for all values in it; None where it would lead elsewhere."""
    path = unquote(base) + unquote(relative)
    if "\0" in path or any(step in ("", ".", "..") for step in path.split("/")):
        return None
    return f"{database}/{path}"


def _file_spec(directory: Path) -> dict[str, Any]:
    return {"driver": "file", "path": f"{directory}/"}


def _check_node(database: Path, node: _Node, inside: Inside) -> int:
    """The number of a node's entries; refused unless it is a bearable part of a plain file in place."""
    where = f"{database} (node {shorten(node.location)})"
    path, offset, length = parse_location(database, node.location)
    inside.check(path, where)
    return count_entries(path, offset, length, where)


def _start_dump(database: Path, base: Any, node: _Node) -> Any:
    import tensorstore as ts

    try:
        return ts.ocdbt.dump(base, node=node.location)
    except ValueError as error:
        raise CorruptError(
            f"{database}: the location {shorten(node.location)} makes no sense: {error}; restore the folder "
            "from a copy"
        ) from None


def _dumped(future: Any, where: str) -> Any:
    try:
        return future.result()
    except (ValueError, OSError, KeyError, NotImplementedError, RuntimeError) as error:
        raise CorruptError(
            f"{where} cannot be decoded: {str(error).splitlines()[0]}; restore the folder from a copy"
        ) from error
