"""The Orbax writer's ``--ocdbt`` form: all arrays of an item in one OCDBT database.

A chunk is stored once ``put`` returns: ``put`` waits for the database's commit. Commits of threads that wait together
are merged, so the number of writing threads bounds the bytes in flight. Only one process may write a database.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from reshard.errors import FormatError, StorageError
from reshard.formats.base import ChunkChecksum, Place, SharedFile, TargetCheckpoint
from reshard.formats.codecs.tensorstore import tensorstore
from reshard.formats.orbax.param_names import check_path
from reshard.formats.orbax.write.copy_items import copy_items
from reshard.formats.orbax.write.finish import finish_checkpoint
from reshard.formats.orbax.write.item_tree import ItemTree
from reshard.formats.zarr.zarr3_json import chunk_key, zarr_json
from reshard.geometry.grid import Index
from reshard.storage.location import Location

_REMEDY = "make room there, or choose another target, and run again"

_BATCH = 1000
"""Array metadata written at once: enough to merge their commits, and less than a megabyte."""

_CONFIG = {"max_inline_value_bytes": 1024, "max_decoded_node_bytes": 64_000}
"""Small values are stored in the tree's nodes, as with stock Orbax. Nodes are smaller than its 100 MB, since every
commit rewrites the nodes on its path: 6,000 tensors took a quarter of the time and a fifth of the disk."""


class OcdbtWriter:
    """Writes zarr3 arrays through TensorStore into one OCDBT database per item."""

    def __init__(self, target: TargetCheckpoint, trees: Sequence[ItemTree]) -> None:
        self._target = target
        self._trees = trees
        self._databases: dict[str, Any] = {}
        self._keys: dict[str, tuple[str, str]] = {}
        self._arrays: dict[str, dict[str, bytes]] = {}
        self._stored: dict[str, frozenset[bytes]] = {}
        for tree in trees:
            self._arrays[tree.item.name] = arrays = {}
            for leaf, tensor in tree.tensors:
                check_path(leaf.folder, f"tensor {leaf.leaf.name!r}")
                self._keys[leaf.leaf.name] = (tree.item.name, leaf.folder)
                arrays[f"{leaf.folder}/zarr.json"] = zarr_json(tensor.spec, tensor.encoding)

    def prepare(self, root: Location) -> None:
        """Open the databases, write each ``zarr.json`` into them, copy the other items."""
        root.make_folder()
        for tree in self._trees:
            place = root / tree.directory
            place.make_folder()
            folder = Path(place.path)
            database = _open_database(folder)
            _write_all(database, folder, self._arrays[tree.item.name])
            self._databases[tree.item.name] = database
        copy_items(self._target, root)

    def places(self, name: str, index: Index) -> tuple[Place, ...]:  # noqa: ARG002  the same for every chunk
        """None: chunks go through ``put``."""
        return ()

    def shared_file(self, file: str) -> SharedFile:
        """Never called: chunks share no file."""
        raise FormatError(
            f"{file!r} is no file that chunks share; this is a defect of the program, please report it"
        )

    def put(self, name: str, index: Index, data: bytes | memoryview) -> None:
        """Store the chunk and wait for it; StorageError, naming the chunk, if that fails."""
        item, param = self._keys[name]
        database = self._databases.get(item)
        if database is None:
            raise FormatError(f"chunk {list(index)} of {name!r} was put before prepare")
        key = f"{param}/{chunk_key(self._target.tensors[name].spec.storage, index)}"
        try:
            database.write(key, bytes(data)).result()
        except (ValueError, OSError) as error:
            raise StorageError(
                f"cannot store chunk {list(index)} of {name!r}: {error}; {_REMEDY}"
            ) from error

    def holds(self, name: str, index: Index) -> bool:
        """Whether the database has the chunk."""
        item, param = self._keys[name]
        if item not in self._stored:
            self._stored[item] = _stored_keys(self._databases[item])
        key = f"{param}/{chunk_key(self._target.tensors[name].spec.storage, index)}"
        return key.encode() in self._stored[item]

    def keeps(self, file: str) -> bool:
        """Whether the file is part of a database: its manifest, or data below ``d``."""
        folders = {tree.directory for tree in self._trees}
        parent, _, name = file.rpartition("/")
        above, _, last = parent.rpartition("/")
        return (parent in folders and name == "manifest.ocdbt") or (
            above in folders and last == "d"
        )

    def finish(
        self,
        root: Location,
        digests: Mapping[str, str],
        checksums: Iterable[ChunkChecksum],  # noqa: ARG002  chunks have trailers, files have digests
    ) -> Mapping[str, bytes]:
        """Write metadata and slices.json; the markers are returned."""
        self._databases.clear()
        self._stored.clear()
        return finish_checkpoint(root, self._target, self._trees, digests, arrays={}, ocdbt=True)


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
