"""The ``zarr.json`` of an array: regular grid, default chunk keys, a codec chain TensorStore decodes.

Format: Zarr v3 core specification; data type and codec names as TensorStore's zarr3 driver has them.
"""

from __future__ import annotations

import itertools
import json
from functools import lru_cache
from typing import Any

from reshard.errors import FormatError
from reshard.formats.contents import Encoding
from reshard.formats.limits import MAX_RANK
from reshard.geometry.dtypes import NOT_STORED, storage_bytes
from reshard.geometry.grid import Grid, Index
from reshard.layout.tensor_spec import TensorSpec

_SHUFFLES = {-1: "shuffle", 0: "noshuffle", 1: "shuffle", 2: "bitshuffle"}
"""zarr2's shuffle numbers; -1 leaves it to the element size, which matters to a writer only."""


def zarr_json(spec: TensorSpec, encoding: Encoding) -> bytes:
    """The file's bytes; FormatError, naming the tensor, if zarr3 has no way to say it."""
    chunk = _chunk_shape(spec)
    try:
        return _render(
            spec.shape, chunk, spec.dtype, encoding, "/" if spec.storage.count > 1 else "."
        )
    except FormatError as error:
        raise FormatError(f"tensor {spec.name!r} cannot be written: {error}") from None


def chunk_key(grid: Grid, index: Index) -> str:
    """Path of a chunk below its array's folder.

    The only chunk of an array is stored beside its ``zarr.json``: for a hundred thousand small arrays that saves
    two folders each, and most of the time.

    >>> grid = Grid.regular((4, 4), (4, 2))
    >>> chunk_key(grid, (0, 1)), chunk_key(Grid.whole((4, 4)), (0, 0)), chunk_key(Grid.whole(()), ())
    ('c/0/1', 'c.0.0', 'c')
    """
    return ("/" if grid.count > 1 else ".").join(("c", *map(str, index)))


def chunk_folders(grid: Grid) -> list[str]:
    """The folders of an array's chunk files, parents first.

    >>> chunk_folders(Grid.regular((4, 4), (2, 2))), chunk_folders(Grid.whole((4, 4)))
    (['c', 'c/0', 'c/1'], [])
    """
    if grid.count <= 1:
        return []
    levels = range(len(grid.shape))
    indices = (i for depth in levels for i in itertools.product(*map(range, grid.parts[:depth])))
    return ["/".join(("c", *map(str, index))) for index in indices]


def _chunk_shape(spec: TensorSpec) -> tuple[int, ...]:
    if spec.chunk_shape is None or len(spec.chunk_shape) != len(spec.shape):
        raise FormatError(
            f"tensor {spec.name!r} of shape {list(spec.shape)} cannot be written: zarr pads its "
            f"chunks, so it needs a chunk shape of that rank, but has {spec.chunk_shape}"
        )
    chunk = tuple(max(1, n) for n in spec.chunk_shape)
    if spec.storage != Grid.regular(spec.shape, chunk):
        raise FormatError(
            f"tensor {spec.name!r} cannot be written: zarr's chunks are all of one shape "
            f"({list(chunk)}), but the tensor is to be stored in other cuts"
        )
    return chunk


@lru_cache(maxsize=1024)
def _render(
    shape: tuple[int, ...], chunk: tuple[int, ...], dtype: str, encoding: Encoding, separator: str
) -> bytes:
    if len(shape) > MAX_RANK:
        raise FormatError(f"it has {len(shape)} dimensions, but TensorStore reads {MAX_RANK}")
    if dtype in NOT_STORED:
        raise FormatError(f"zarr3 as TensorStore reads it has no dtype {dtype}; cast it or drop it")
    document = {
        "zarr_format": 3,
        "node_type": "array",
        "shape": list(shape),
        "data_type": dtype,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": list(chunk)}},
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": separator}},
        "fill_value": _fill_value(dtype),
        "codecs": _codecs(dtype, encoding),
        "attributes": {},
    }
    return json.dumps(document, separators=(",", ":")).encode()


def _fill_value(dtype: str) -> Any:
    if dtype == "bool":
        return False
    if dtype.startswith("complex"):
        return [0.0, 0.0]
    return 0 if dtype.startswith(("int", "uint")) else 0.0


def _codecs(dtype: str, encoding: Encoding) -> list[dict[str, Any]]:
    codecs: list[dict[str, Any]] = [{"name": "bytes"}]
    if storage_bytes(dtype) > 1:
        codecs[0]["configuration"] = {"endian": "little"}
    codecs += _compressor(dtype, encoding)
    if encoding.checksum:
        codecs.append({"name": "crc32c"})
    return codecs


def _compressor(dtype: str, encoding: Encoding) -> list[dict[str, Any]]:
    if encoding.compressor == "none":
        return []
    if encoding.compressor == "zstd":
        level = 0 if encoding.level is None else encoding.level
        return [{"name": "zstd", "configuration": {"level": level, "checksum": False}}]
    if encoding.compressor == "gzip":
        level = 6 if encoding.level is None else encoding.level
        return [{"name": "gzip", "configuration": {"level": level}}]
    if encoding.compressor == "blosc":
        return [{"name": "blosc", "configuration": _blosc(dtype, encoding)}]
    raise FormatError(
        f"chunks encoded by {encoding.compressor!r} can be read but not written as they are; "
        "choose compression none, zstd, gzip or blosc"
    )


def _blosc(dtype: str, encoding: Encoding) -> dict[str, Any]:
    params = json.loads(encoding.spec) if encoding.spec else {}
    shuffle = params.get("shuffle", "shuffle")
    return {
        "cname": params.get("cname", "lz4"),
        "clevel": 5 if encoding.level is None else encoding.level,
        "shuffle": _SHUFFLES.get(shuffle, shuffle),
        "typesize": storage_bytes(dtype),
        "blocksize": params.get("blocksize", 0),
    }
