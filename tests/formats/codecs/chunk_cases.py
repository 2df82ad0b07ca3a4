"""Chunks by TensorStore in every codec, and their decoding in a stream."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import tensorstore as ts

from reshard.formats.codecs import (
    open_stream,
)
from reshard.formats.contents import Encoding, Extent

WHERE = "tensor 'a/b', chunk (0, 1)"


SHAPE = (300, 701)


def bf16_array(shape=SHAPE):
    return np.random.default_rng(0).standard_normal(shape).astype(ml_dtypes.bfloat16)


def f4_array(shape=SHAPE):
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


def zarr2(compressor):
    return "zarr", lambda a: {
        "shape": a.shape,
        "chunks": a.shape,
        "dtype": "bfloat16" if a.dtype == ml_dtypes.bfloat16 else a.dtype.str,
        "compressor": compressor,
    }


def zarr3(*codecs):
    return "zarr3", lambda a: {
        "shape": a.shape,
        "data_type": a.dtype.name,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": a.shape}},
        "codecs": [{"name": "bytes", "configuration": {"endian": "little"}}, *codecs],
    }


def blosc(cname, shuffle, blocksize=0, clevel=5):
    return {
        "id": "blosc",
        "cname": cname,
        "clevel": clevel,
        "shuffle": shuffle,
        "blocksize": blocksize,
    }


def blosc_case(*args):
    spec = blosc(*args)
    return zarr2(spec), Encoding("blosc", spec["clevel"], spec=json.dumps(spec))


CRC = {"name": "crc32c"}


ZSTD3 = {"name": "zstd", "configuration": {"level": 3}}


GZIP = {"name": "gzip", "configuration": {"level": 5}}


CASES = {
    "zarr2-raw": (zarr2(None), Encoding()),
    "zarr2-zstd": (zarr2({"id": "zstd", "level": 1}), Encoding("zstd", 1)),
    "zarr2-zstd-22": (zarr2({"id": "zstd", "level": 22}), Encoding("zstd", 22)),
    "zarr2-gzip": (zarr2({"id": "gzip", "level": 4}), Encoding("gzip", 4)),
    "zarr2-zlib": (zarr2({"id": "zlib", "level": 1}), Encoding("gzip", 1)),
    "zarr2-lz4": blosc_case("lz4", 1),
    "zarr2-lz4-unshuffled": blosc_case("lz4", 0),
    "zarr2-lz4-bits": blosc_case("lz4", 2, 10_000),
    "zarr2-lz4hc": blosc_case("lz4hc", 1, 4096),
    "zarr2-blosclz": blosc_case("blosclz", 1, 1 << 16),
    "zarr2-blosc-zlib": blosc_case("zlib", 2),
    "zarr2-blosc-zstd": blosc_case("zstd", 1, 0, 9),
    "zarr2-blosc-big-blocks": blosc_case("zstd", 2, 1 << 22),
    "zarr3-raw": (zarr3(), Encoding()),
    "zarr3-crc": (zarr3(CRC), Encoding(checksum=True)),
    "zarr3-zstd": (zarr3(ZSTD3), Encoding("zstd", 3)),
    "zarr3-zstd-crc": (zarr3(ZSTD3, CRC), Encoding("zstd", 3, checksum=True)),
    "zarr3-gzip": (zarr3(GZIP), Encoding("gzip", 5)),
    "zarr3-gzip-crc": (zarr3(GZIP, CRC), Encoding("gzip", 5, checksum=True)),
}


each_case = pytest.mark.parametrize("case", CASES)


def store_of(case, array, path):
    driver, metadata = CASES[case][0]
    spec = {
        "driver": driver,
        "kvstore": {"driver": "file", "path": str(path)},
        "metadata": metadata(array),
    }
    return ts.open(spec, create=True).result()


def chunk_file(case, path):
    return path / ("0.0" if case.startswith("zarr2") else "c/0/0")


def written(case, array, path):
    """A chunk by TensorStore, placed in the middle of another file: its encoding and extent."""
    store_of(case, array, path / case).write(array).result()
    data = chunk_file(case, path / case).read_bytes()
    return CASES[case][1], placed(data, path)


def placed(data, path):
    file = path / "data"
    file.write_bytes(b"before" + data + b"after")
    return Extent(str(file), 6, len(data))


def stored(extent):
    return Path(extent.path).read_bytes()[extent.offset : extent.offset + extent.length]


def decode(encoding, extent, nbytes, step=100_003):
    data = bytearray(nbytes)
    with closing(open_stream(encoding, extent, nbytes, WHERE)) as stream:
        for at in range(0, nbytes, step):
            stream.readinto(memoryview(data)[at : at + step])
        assert stream.close_checked()
    return bytes(data)
