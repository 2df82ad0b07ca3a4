"""Reading torch's distributed checkpoint without reshard and without torch, in the shortest way: all in memory.

``tests/formats/dcp`` asks torch itself.
"""

from __future__ import annotations

import pickle
from collections import OrderedDict
from io import BytesIO
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import ml_dtypes
import numpy as np

from tests.dcp_files import STORAGES

DTYPE_OF = {storage: dtype for dtype, storage in STORAGES.items()}
DTYPES = (
    *STORAGES, "uint16", "uint32", "uint64", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz",
    "float8_e8m0fnu",
)  # fmt: skip
RECORDS = {
    "Metadata", "TensorStorageMetadata", "BytesStorageMetadata", "ChunkStorageMetadata", "MetadataIndex", "TensorProperties",
    "_StorageInfo",
}  # fmt: skip
CALLS = {"_MEM_FORMAT_ENCODING", "_get_layout", "Size", "_rebuild_tensor_v2", "_rebuild_tensor_v3"}


class Record:
    """An object of any class of torch, with its state."""

    state: Any = None

    def __setstate__(self, state: Any) -> None:
        self.state = state

    def __getitem__(self, name: str) -> Any:
        return self.state[name]


class Unpickler(pickle.Unpickler):
    """Knows the names that such files have; classes become Records, and functions give what they are given."""

    def find_class(self, module: str, name: str) -> Any:
        if name in RECORDS:
            return type(name, (Record,), {})
        if name in CALLS:
            return lambda *arguments: arguments[0] if name == "Size" else arguments
        if (module, name) == ("collections", "OrderedDict"):
            return OrderedDict
        if (module, name) == ("builtins", "complex"):
            return complex
        assert module in ("torch", "torch.storage"), (module, name)
        return name

    def persistent_load(self, reference: Any) -> Any:
        return reference


def unpickled(data: bytes) -> Any:
    return Unpickler(BytesIO(data)).load()


def read_dcp(path: Path) -> dict[str, np.ndarray]:
    """The arrays by name, put together of their pieces, and the numbers; CRCs of every archive are checked."""
    metadata = unpickled((path / ".metadata").read_bytes())
    found: dict[str, np.ndarray] = {}
    filled: dict[str, np.ndarray] = {}
    paths = metadata["planner_data"]
    names = {fqn: "/".join(map(str, keys)) for fqn, keys in paths.items()}
    for fqn, entry in metadata["state_dict_metadata"].items():
        if type(entry).__name__ == "TensorStorageMetadata":
            dtype = entry["properties"].state[0]
            found[names[fqn]] = np.zeros(entry["size"], getattr(ml_dtypes, dtype, dtype))
            filled[names[fqn]] = np.zeros(entry["size"], bool)
    for index, place in metadata["storage_data"].items():
        with (path / place["relative_path"]).open("rb") as file:
            file.seek(place["offset"])
            item = read_item(file.read(place["length"]))
        name = names[index["fqn"]]
        if isinstance(item, np.ndarray):
            starts = index["offset"]
            at = tuple(slice(o, o + n) for o, n in zip(starts, item.shape, strict=True))
            found[name][at], filled[name][at] = item, True
        elif isinstance(item, bool | int | float | complex):
            found[name] = np.asarray(item)
    assert all(array.all() for array in filled.values())
    return found


def read_item(data: bytes) -> Any:
    """The array or the value of an archive."""
    with ZipFile(BytesIO(data)) as archive:
        assert archive.testzip() is None
        assert [info.compress_type for info in archive.infolist()] == [0] * len(archive.infolist())
        value = unpickled(archive.read("archive/data.pkl"))
        if not (isinstance(value, tuple) and value and isinstance(value[0], tuple)):
            return value
        elements = archive.read("archive/data/0")
    (_, storage, *_), offset, shape, _, _, _, *more = value
    assert offset == 0
    dtype = DTYPE_OF.get(storage) or more[0]
    return np.frombuffer(elements, getattr(ml_dtypes, dtype, dtype)).reshape(shape)
