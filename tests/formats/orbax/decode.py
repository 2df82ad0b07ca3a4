"""Decodes what a reader locates, with code that shares nothing with the project's own."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numcodecs
import numpy as np
import zstandard

from reshard.formats.base import Reader
from reshard.formats.contents import Extent


def read_tensor(reader: Reader, name: str) -> np.ndarray:
    """The whole tensor, put together from its located chunks."""
    tensor = reader.tensors[name]
    spec = tensor.spec
    kind = np.dtype(getattr(ml_dtypes, spec.dtype, spec.dtype))
    whole = np.empty(spec.shape, kind)
    for index in spec.storage.indices():
        extent = reader.locate(name, index)
        shape = spec.stored_shape(index)
        if extent is None:
            chunk = np.full(shape, np.frombuffer(tensor.fill, kind)[0])
        elif tensor.encoding.compressor == "tensorstore":
            chunk = by_tensorstore(json.loads(tensor.encoding.spec), load(extent))
        else:
            data = decode(load(extent), tensor.encoding.compressor, tensor.encoding.checksum)
            order = tensor.encoding.axis_order or tuple(range(len(shape)))
            stored = np.frombuffer(data, kind).reshape([shape[axis] for axis in order])
            chunk = np.moveaxis(stored, range(len(shape)), order)
        box = spec.storage.box(index)
        whole[box.slices] = chunk[tuple(slice(0, n) for n in box.shape)]
    return whole


def by_tensorstore(spec: dict[str, Any], data: bytes) -> np.ndarray:
    """The elements of the only chunk of an array in memory."""
    import tensorstore as ts

    context = ts.Context()
    metadata = spec["metadata"]
    shape = metadata["shape"]
    create = {name: value for name, value in spec.items() if name != "fill_missing_data_reads"}
    array = ts.open(create, context=context, create=True).result()
    memory = ts.KvStore.open("memory://", context=context).result()
    memory.write(".".join("0" for _ in shape) or "0", data).result()
    return np.asarray(array.read().result())


def load(extent: Extent) -> bytes:
    """The encoded bytes of a chunk."""
    if extent.inline is not None:
        assert len(extent.inline) == extent.length
        return extent.inline
    with Path(extent.path).open("rb") as file:
        file.seek(extent.offset)
        data = file.read(extent.length)
    assert len(data) == extent.length
    return data


def decode(data: bytes, compressor: str, checksum: bool) -> bytes:
    """The bytes of a chunk's elements."""
    if checksum:
        data, recorded = data[:-4], data[-4:]
        assert crc32c(data) == int.from_bytes(recorded, "little")
    if compressor == "zstd":
        return zstandard.ZstdDecompressor().decompressobj().decompress(data)
    if compressor == "gzip":
        return gzip.decompress(data)
    if compressor == "blosc":
        return bytes(numcodecs.Blosc().decode(data))
    assert compressor == "none"
    return data


def crc32c(data: bytes) -> int:
    """Castagnoli's CRC byte by byte."""
    value = 0xFFFFFFFF
    for byte in data:
        value = value >> 8 ^ _TABLE[(value ^ byte) & 0xFF]
    return value ^ 0xFFFFFFFF


def _entry(value: int) -> int:
    for _ in range(8):
        value = value >> 1 ^ (0x82F63B78 if value & 1 else 0)
    return value


_TABLE = [_entry(byte) for byte in range(256)]
