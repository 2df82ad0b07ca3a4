"""The OCDBT databases of a target, one for each item that is a tree, written through TensorStore.

A chunk is stored once ``put`` returns: ``put`` waits for the database's commit. Commits of threads that wait together
are merged, so the number of writing threads bounds the bytes in flight. Only one process may write a database.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from reshard.errors import FormatError, StorageError
from reshard.formats.codecs.tensorstore import tensorstore
from reshard.geometry.grid import Index
from reshard.storage.location import Location

_REMEDY = "make room there, or choose another target, and run again"

_BATCH = 1000
"""Array metadata written at once: enough to merge their commits, and less than a megabyte."""

_CONFIG = {"max_inline_value_bytes": 1024, "max_decoded_node_bytes": 64_000}
"""Small values are stored in the tree's nodes, as with stock Orbax. Nodes are smaller than its 100 MB, since every
commit rewrites the nodes on its path: 6,000 tensors took a quarter of the time and a fifth of the disk."""


class Databases:
    """Databases in folders below a root; safe from any thread while they are open.

    Args:
        literals: by folder, the values by key that are known before the data.
        key: the folder and the key of a chunk.
    """

    def __init__(
        self,
        literals: Mapping[str, Mapping[str, bytes]],
        key: Callable[[str, Index], tuple[str, str]],
    ) -> None:
        self._literals = literals
        self._key = key
        self._open: dict[str, Any] = {}
        self._stored: dict[str, frozenset[bytes]] = {}

    def open(self, root: Location) -> None:
        """Opens the databases, and writes the values that are known before the data; may be called again."""
        for name, values in self._literals.items():
            place = root / name
            place.make_folder()
            folder = Path(place.path)
            database = _open_database(folder)
            _write_all(database, folder, values)
            self._open[name] = database

    def put(self, name: str, index: Index, data: bytes | memoryview) -> None:
        """Stores a whole encoded chunk and waits for it; StorageError, naming the chunk, if that fails."""
        folder, key = self._key(name, index)
        database = self._open.get(folder)
        if database is None:
            raise FormatError(f"chunk {list(index)} of {name!r} was put before prepare")
        try:
            database.write(key, bytes(data)).result()
        except (ValueError, OSError) as error:
            raise StorageError(
                f"cannot store chunk {list(index)} of {name!r}: {error}; {_REMEDY}"
            ) from error

    def holds(self, name: str, index: Index) -> bool:
        """True if a chunk that an earlier run stored is there; called once they are open."""
        folder, key = self._key(name, index)
        if folder not in self._stored:
            self._stored[folder] = _stored_keys(self._open[folder])
        return key.encode() in self._stored[folder]

    def owns(self, file: str) -> bool:
        """True if the file is part of a database: its manifest, or data below ``d``."""
        parent, _, name = file.rpartition("/")
        above, _, last = parent.rpartition("/")
        return (parent in self._literals and name == "manifest.ocdbt") or (
            above in self._literals and last == "d"
        )

    def close(self) -> None:
        """Ends the writing; may be called twice."""
        self._open.clear()
        self._stored.clear()


def _open_database(folder: Path) -> Any:
    ts = tensorstore(f"open an OCDBT database in {folder}")
    context = ts.Context({"file_io_sync": False})
    spec = {"driver": "ocdbt", "base": {"driver": "file", "path": f"{folder}/"}, "config": _CONFIG}
    try:
        return ts.KvStore.open(spec, context=context).result()
    except (ValueError, OSError) as error:
        raise StorageError(
            f"cannot open an OCDBT database in {folder}: {error}; {_REMEDY}"
        ) from error


def _stored_keys(database: Any) -> frozenset[bytes]:
    try:
        return frozenset(database.list().result())
    except (ValueError, OSError) as error:
        raise StorageError(
            f"cannot list the OCDBT database that an earlier run left: {error}; start over (restart)"
        ) from error


def _write_all(database: Any, folder: Path, values: Mapping[str, bytes]) -> None:
    items = list(values.items())
    try:
        for start in range(0, len(items), _BATCH):
            writes = [database.write(key, data) for key, data in items[start : start + _BATCH]]
            for write in writes:
                write.result()
    except (ValueError, OSError) as error:
        raise StorageError(
            f"cannot write to the OCDBT database in {folder}: {error}; {_REMEDY}"
        ) from error
