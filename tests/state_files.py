"""State dicts as ``torch.save`` writes them, by hand: archives with several storages, which tensors may share."""

from __future__ import annotations

from collections.abc import Mapping
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple
from zipfile import ZIP_STORED, ZipFile, ZipInfo

import numpy as np

from tests.dcp_files import rebuilt
from tests.pickled import Call, Ordered, pickled


class View(NamedTuple):
    """A tensor in a storage that others may use too: its key, and the tensor's offset and strides in elements."""

    storage: np.ndarray
    key: str
    offset: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]


def write_state(file: Path, tree: Any, **options: Any) -> Path:
    """Writes the archive of a tree of arrays, Views and plain values; ``options`` are those of ``state_archive``."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(state_archive(tree, **options))
    return file


def state_archive(
    tree: Any, *, top: str = "archive", data: bytes | None = None, compression: int = ZIP_STORED
) -> bytes:
    """``data``: another pickle in place of the right one."""
    storages: dict[str, bytes] = {}
    made = pickled(_value(tree, storages))
    return packed(made if data is None else data, storages, top, compression)


def packed(
    data: bytes,
    storages: Mapping[str, bytes],
    top: str = "archive",
    compression: int = ZIP_STORED,
) -> bytes:
    """The archive of a pickle and its storages, by their keys."""
    out = BytesIO()
    records = {"data.pkl": data, "byteorder": b"little"}
    records |= {f"data/{key}": held for key, held in storages.items()} | {"version": b"3\n"}
    with ZipFile(out, "w", compression) as file:
        for name, held in records.items():
            file.writestr(ZipInfo(f"{top}/{name}"), held, compression)
    return out.getvalue()


def _value(value: Any, storages: dict[str, bytes]) -> Any:
    if isinstance(value, np.ndarray):
        return _array(value, storages)
    if isinstance(value, View):
        storages[value.key] = value.storage.tobytes()
        return rebuilt(
            value.storage.dtype.name,
            value.shape,
            value.stride,
            offset=value.offset,
            count=value.storage.size,
            key=value.key,
        )
    if isinstance(value, Ordered):
        return Ordered({key: _value(child, storages) for key, child in value.items.items()})
    if isinstance(value, dict):
        return {key: _value(child, storages) for key, child in value.items()}
    if isinstance(value, list):
        return [_value(child, storages) for child in value]
    return value


def _array(array: np.ndarray, storages: dict[str, bytes]) -> Call:
    """An array in a storage of its own, in the order in which it is in memory."""
    stored = array.transpose(sorted(range(array.ndim), key=lambda dim: -array.strides[dim]))
    if not stored.flags.c_contiguous:
        stored = array = array.copy()
    key = str(len(storages))
    storages[key] = stored.tobytes()
    stride = tuple(s // array.itemsize for s in array.strides)
    return rebuilt(array.dtype.name, array.shape, stride, key=key)
