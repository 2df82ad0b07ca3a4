"""Distributed checkpoints of torch, written by hand: as torch writes them, or wrong in one way."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple
from zipfile import ZIP_STORED, ZipFile, ZipInfo

import ml_dtypes
import numpy as np

from tests.pickled import Call, Global, New, Ordered, Reference, pickled

RECORDS = "torch.distributed.checkpoint.metadata"
STORAGES = {
    "bool": "BoolStorage", "int8": "CharStorage", "uint8": "ByteStorage", "int16": "ShortStorage", "int32": "IntStorage",
    "int64": "LongStorage", "float16": "HalfStorage", "bfloat16": "BFloat16Storage", "float32": "FloatStorage",
    "float64": "DoubleStorage", "complex64": "ComplexFloatStorage", "complex128": "ComplexDoubleStorage",
}  # fmt: skip


class Part(NamedTuple):
    """A piece of a tensor: where it begins, and its elements."""

    offsets: tuple[int, ...]
    array: np.ndarray


class Tensor(NamedTuple):
    """A tensor in pieces."""

    dtype: str
    shape: tuple[int, ...]
    parts: Sequence[Part]


class Item(NamedTuple):
    """What is stored: of which entry, where it begins in a tensor, and its archive.

    ``start``: where the metadata says that it is in the file; None for the truth.
    """

    name: str
    offsets: tuple[int, ...] | None
    archive: bytes
    file: str = "__0_0.distcp"
    start: int | None = None


def whole(array: np.ndarray) -> Tensor:
    """A tensor in one piece."""
    return Tensor(array.dtype.name, array.shape, [Part((0,) * array.ndim, array)])


def cut(array: np.ndarray, count: int) -> Tensor:
    """A tensor in so many pieces of rows, the last first."""
    rows = np.array_split(np.arange(len(array)), count)
    parts = [Part((int(r[0]), *(0,) * (array.ndim - 1)), array[r]) for r in rows if len(r)]
    return Tensor(array.dtype.name, array.shape, parts[::-1])


def turned(array: np.ndarray, order: Sequence[int]) -> np.ndarray:
    """The same array, its axes in another order in memory: the slowest first."""
    return array.transpose(order).copy().transpose(np.argsort(order))


def write_dcp(folder: Path, tree: Mapping[str, Any], *, files: int = 1, paths: Any = None) -> Path:
    """Writes a checkpoint: arrays, Tensors and plain values by name. Items take turns in the files."""
    named = {
        name: whole(value) if isinstance(value, np.ndarray) else value
        for name, value in tree.items()
    }
    items = []
    for name, value in named.items():
        for offsets, data in _archives(value):
            items.append(Item(name, offsets, data, f"__{len(items) % files}_0.distcp"))
    listed = {name: entry(value) for name, value in named.items()}
    return write_items(folder, listed, items, paths)


def _archives(value: Any) -> list[tuple[tuple[int, ...] | None, bytes]]:
    if not isinstance(value, Tensor):
        return [(None, value_archive(value))]
    return [(part.offsets, tensor_archive(part.array)) for part in value.parts]


def write_items(
    folder: Path,
    listed: Mapping[str, Any],
    items: Sequence[Item],
    paths: Any = None,
    metadata: str = ".metadata",
    **of_place: Any,
) -> Path:
    """Writes entries and items as they are given; ``of_place``: other fields of each ``_StorageInfo``."""
    folder.mkdir(parents=True, exist_ok=True)
    data: dict[str, bytes] = {}
    places: list[tuple[Any, Any]] = []
    for item in items:
        start = len(data.setdefault(item.file, b""))
        data[item.file] += item.archive
        index: dict[str, Any] = {"fqn": item.name}
        if item.offsets is not None:
            index |= {"offset": size(item.offsets), "index": 0}
        place = {
            "relative_path": item.file,
            "offset": start if item.start is None else item.start,
            "length": len(item.archive),
            **of_place,
        }
        key = New(Global(RECORDS, "MetadataIndex"), index)
        places.append((key, New(Global("torch.distributed.checkpoint.filesystem", "_StorageInfo"), place)))  # fmt: skip
    for name, held in data.items():
        (folder / name).write_bytes(held)
    (folder / metadata).write_bytes(pickled(metadata_of(listed, places, paths)))
    return folder


class Pairs(dict[Any, Any]):
    """A dict whose keys need no hash."""

    def __init__(self, pairs: Sequence[tuple[Any, Any]]) -> None:
        super().__init__()
        self.pairs = pairs

    def items(self) -> Any:
        return self.pairs


def metadata_of(listed: Mapping[str, Any], places: Sequence[tuple[Any, Any]], paths: Any) -> New:
    state = {
        "state_dict_metadata": dict(listed),
        "planner_data": paths,
        "storage_data": Pairs(places),
        "version": "1.0.0",
    }
    return New(Global(RECORDS, "Metadata"), state)


def entry(value: Any) -> New:
    """What the metadata says of a tensor or a value."""
    if not isinstance(value, Tensor):
        return New(Global(RECORDS, "BytesStorageMetadata"))
    return tensor_entry(value.dtype, value.shape, [(p.offsets, p.array.shape) for p in value.parts])


def tensor_entry(
    dtype: str,
    shape: tuple[int, ...],
    chunks: Sequence[tuple[tuple[int, ...], tuple[int, ...]]],
    layout: str = "torch.strided",
) -> New:
    """What the metadata says of a tensor: its chunks have offsets and sizes."""
    encoding = Call(Global(RECORDS, "_MEM_FORMAT_ENCODING"), (0,))
    of_layout = Call(Global("torch.serialization", "_get_layout"), (layout,))
    properties = (Global("torch", dtype), of_layout, False, encoding, False)
    return New(
        Global(RECORDS, "TensorStorageMetadata"),
        {
            "properties": New(Global(RECORDS, "TensorProperties"), properties),
            "size": size(shape),
            "chunks": [
                New(
                    Global(RECORDS, "ChunkStorageMetadata"),
                    {"offsets": size(offsets), "sizes": size(sizes)},
                )
                for offsets, sizes in chunks
            ],
        },
    )


def size(shape: Sequence[int]) -> Call:
    return Call(Global("torch", "Size"), (tuple(shape),))


def value_archive(value: Any) -> bytes:
    return archive(pickled(value))


def tensor_archive(array: np.ndarray, **changes: Any) -> bytes:
    """The archive of an array, which keeps the order of its axes if that is without gaps; ``changes``: of ``rebuilt``."""
    stored = array.transpose(sorted(range(array.ndim), key=lambda dim: -array.strides[dim]))
    if not stored.flags.c_contiguous:
        stored = array = array.copy()
    stride = tuple(s // array.itemsize for s in array.strides)
    call = rebuilt(array.dtype.name, array.shape, stride, **changes)
    return archive(pickled(call), stored.tobytes())


def rebuilt(
    dtype: str,
    shape: tuple[int, ...],
    stride: tuple[int, ...],
    *,
    offset: int = 0,
    count: int | None = None,
    more: tuple[Any, ...] = (),
    key: str = "0",
) -> Call:
    """The call that makes a tensor; ``more``: arguments at the end; ``key``: of its storage."""
    elements = math.prod(shape) if count is None else count
    hooks = Ordered({})
    if dtype in STORAGES:
        storage = Reference(("storage", Global("torch", STORAGES[dtype]), key, "cpu", elements))
        arguments = (storage, offset, shape, stride, False, hooks, *more)
        return Call(Global("torch._utils", "_rebuild_tensor_v2"), arguments)
    nbytes = elements * np.dtype(getattr(ml_dtypes, dtype, dtype)).itemsize
    untyped = Reference(("storage", Global("torch.storage", "UntypedStorage"), key, "cpu", nbytes))
    arguments = (untyped, offset, shape, stride, False, hooks, Global("torch", dtype), *more)
    return Call(Global("torch._utils", "_rebuild_tensor_v3"), arguments)


def archive(
    data: bytes,
    storage: bytes | None = None,
    *,
    byteorder: bytes = b"little",
    compression: int = ZIP_STORED,
) -> bytes:
    """An archive of a pickle and the bytes of a storage."""
    out = BytesIO()
    records = {"data.pkl": data, "byteorder": byteorder, "version": b"3\n"}
    if storage is not None:
        records["data/0"] = storage
    with ZipFile(out, "w", compression) as file:
        for name, held in records.items():
            file.writestr(ZipInfo(f"archive/{name}"), held, compression)
    return out.getvalue()
