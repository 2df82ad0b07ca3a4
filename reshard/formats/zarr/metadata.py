"""``.zarray`` (zarr 2) and ``zarr.json`` (zarr 3): shape, dtype, chunks, codecs and fill of an array.

Sources: https://zarr-specs.readthedocs.io/en/latest/v2/v2.0.html and …/v3/core/v3.0.html, the
sharding codec …/v3/codecs/sharding-indexed/v1.0.html, and the extensions of TensorStore 0.1
(``bfloat16``, ``int4`` and ``float8_*`` as plain dtype names in both).

Some codec chains are decoded without TensorStore: little-endian elements, their axes in any order, then at most one of
zstd, gzip and blosc, then at most a CRC32C. Every other chain is left to TensorStore (``orbax.find_arrays``); if that cannot open the
array, it is refused.
"""

from __future__ import annotations

import base64
import binascii
import json
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from msgspec import Struct
from msgspec.structs import replace

from reshard.errors import CorruptError, FormatError, shorten
from reshard.formats.contents import Encoding
from reshard.formats.limits import MAX_CHUNKS, MAX_RANK, MAX_TENSOR_BYTES
from reshard.formats.safe_json import expect, expect_sizes, json_value
from reshard.geometry.dtypes import DTYPES, numpy_dtype, storage_bytes

if TYPE_CHECKING:
    import numpy as np


BY_TENSORSTORE = Encoding("tensorstore")
"""A chain that only TensorStore may decode; the caller, who knows the array's location, adds ``spec``."""

SUPPORTED = "none, zstd, gzip and blosc, each with or without crc32c, and what TensorStore decodes"


class ShardCodec(Struct, frozen=True):
    """The parameters of a ``sharding_indexed`` codec that locate its inner chunks."""

    chunk_shape: Any
    at_end: bool
    checksum: bool


class Chain(Struct, frozen=True):
    """The encoding of a chunk, and the shard that contains it, if any."""

    encoding: Encoding
    shard: ShardCodec | None = None


def zarr2_encoding(fields: Mapping[str, Any], where: str) -> Encoding:
    """The encoding for ``compressor``; ``filters`` are refused, since TensorStore supports none."""
    if fields.get("filters"):
        raise FormatError(
            f"{where}: zarr 2 filters ({shorten(fields['filters'])}) are not supported; expected no "
            f"filters, and one of the compressors {SUPPORTED}"
        )
    compressor = fields.get("compressor")
    if compressor is None:
        return Encoding()
    configuration = expect(compressor, dict, "compressor", where)
    return _compressed(configuration.get("id"), configuration, where)


def turned(encoding: Encoding, axis_order: Sequence[int]) -> Encoding:
    """The encoding of chunks whose axes are stored in this order, slowest first."""
    is_row_major = list(axis_order) == sorted(axis_order)
    return encoding if is_row_major else replace(encoding, axis_order=tuple(axis_order))


def zarr3_encoding(codecs: Any, several_bytes: bool, rank: int, where: str) -> Chain:
    """The chain that ``codecs`` names.

    Args:
        codecs: the value of ``codecs``, outermost first.
        several_bytes: True if an element takes several bytes, so that their order matters.
        rank: of the array.
        where: tensor and file, for errors.
    """
    chain = [_codec(entry, where) for entry in expect(codecs, list, "codecs", where)]
    if not chain:
        raise CorruptError(f"{where}: codecs should name at least 'bytes', but the list is empty")
    if [name for name, _ in chain] == ["sharding_indexed"]:
        return _sharded(chain[0][1], several_bytes, rank, where)
    return Chain(_turned_chain(chain, several_bytes, rank, where))


def _sharded(configuration: Mapping[str, Any], several_bytes: bool, rank: int, where: str) -> Chain:
    inner = zarr3_encoding(configuration.get("codecs"), several_bytes, rank, where)
    index = expect(configuration.get("index_codecs"), list, "index_codecs", where)
    names = [
        name for name, c in (_codec(e, where) for e in index) if name != "bytes" or _is_little(c)
    ]
    location = configuration.get("index_location", "end")
    if location not in ("start", "end"):
        raise CorruptError(
            f"{where}: index_location should be 'start' or 'end', but is {shorten(location)}"
        )
    known = names in (["bytes"], ["bytes", "crc32c"])
    if inner.shard is not None or inner.encoding is BY_TENSORSTORE or not known:
        return Chain(BY_TENSORSTORE)
    shard = ShardCodec(configuration.get("chunk_shape"), location == "end", "crc32c" in names)
    return Chain(inner.encoding, shard)


def _turned_chain(
    chain: list[tuple[str, Mapping[str, Any]]], several_bytes: bool, rank: int, where: str
) -> Encoding:
    """A chain that may begin with codecs that reorder axes."""
    axes = list(range(rank))
    while chain and chain[0][0] == "transpose":
        order = chain[0][1].get("order")
        if not isinstance(order, list) or any(type(axis) is not int for axis in order):
            return BY_TENSORSTORE
        if sorted(order) != list(range(rank)):
            return BY_TENSORSTORE  # its message says what is wrong
        axes = [axes[axis] for axis in order]
        chain = chain[1:]
    found = _flat(chain, several_bytes, where) if chain else BY_TENSORSTORE
    return found if found is BY_TENSORSTORE else turned(found, axes)


def _flat(chain: list[tuple[str, Mapping[str, Any]]], several_bytes: bool, where: str) -> Encoding:
    (first, configuration), *rest = chain
    if first != "bytes" or (several_bytes and not _is_little(configuration)):
        return BY_TENSORSTORE
    checksum = bool(rest) and rest[-1][0] == "crc32c"
    compressors = rest[:-1] if checksum else rest
    if not compressors:
        return Encoding(checksum=checksum)
    if len(compressors) > 1:
        return BY_TENSORSTORE
    found = _compressed(*compressors[0], where)
    if found is BY_TENSORSTORE:
        return found
    return Encoding(found.compressor, found.level, checksum, found.spec)


def _codec(entry: Any, where: str) -> tuple[str, Mapping[str, Any]]:
    if isinstance(entry, str):
        return entry, {}
    fields = expect(entry, dict, "a codec", where)
    name = expect(fields.get("name"), str, "a codec's name", where)
    return name, expect(
        fields.get("configuration", {}), dict, f"the configuration of {name!r}", where
    )


def _is_little(configuration: Mapping[str, Any]) -> bool:
    return bool(configuration.get("endian", "little") == "little")


def _compressed(name: Any, configuration: Mapping[str, Any], where: str) -> Encoding:
    level = configuration.get("level", configuration.get("clevel"))
    if level is not None and type(level) is not int:
        expect(level, int, f"the level of {shorten(name)}", where)
    if name == "zstd":
        return Encoding("zstd", level)
    if name == "gzip":
        return Encoding("gzip", level)
    if name == "blosc":
        kept = {k: v for k, v in configuration.items() if k != "id"}
        return Encoding("blosc", level, spec=json.dumps(kept, sort_keys=True))
    return BY_TENSORSTORE


ZARR2_FILE = ".zarray"
ZARR3_FILE = "zarr.json"

_ZARR2_NAMES = {
    "b1": "bool", "i1": "int8", "i2": "int16", "i4": "int32", "i8": "int64", "u1": "uint8",
    "u2": "uint16", "u4": "uint32", "u8": "uint64", "f2": "float16", "f4": "float32",
    "f8": "float64", "c8": "complex64", "c16": "complex128",
}  # fmt: skip


class ShardIndexing(Struct, frozen=True):
    """The layout of the inner chunks of a zarr 3 shard, which is one stored value.

    Attributes:
        parts: number of inner chunks along each dimension of a shard.
        at_end: True if the index follows the chunks, else it precedes them.
        checksum: True if a CRC32C follows the index.
    """

    parts: tuple[int, ...]
    at_end: bool
    checksum: bool


class ZarrArray(Struct, frozen=True):
    """The metadata of an array.

    Attributes:
        value_shape: shape of the value of one key: a chunk, or a shard of inner chunks.
        chunk_shape: shape of one encoded chunk; edges are padded to it.
        separator: the separator in a key's chunk position.
        prefixed: True if that position begins with ``c`` (zarr 3's default).
        indexing: the layout of a shard, or None if values are chunks.
    """

    shape: tuple[int, ...]
    dtype: str
    value_shape: tuple[int, ...]
    chunk_shape: tuple[int, ...]
    encoding: Encoding
    fill: bytes
    separator: Literal["/", "."]
    prefixed: bool
    indexing: ShardIndexing | None = None

    def value_key(self, position: Sequence[int]) -> str:
        """The key, below the array's own, of the value at ``position`` in the grid of values."""
        text = self.separator.join(map(str, position))
        if self.prefixed:
            return f"c{self.separator}{text}" if text else "c"
        return text or "0"


def parse_zarr(data: bytes, file_name: str, where: str) -> ZarrArray:
    """Parse the metadata of an array.

    Args:
        data: the file's bytes.
        file_name: ``ZARR2_FILE`` or ``ZARR3_FILE``.
        where: tensor and file, for errors.

    Raises:
        CorruptError: it contradicts itself or the format.
        FormatError: it uses an unsupported feature, or sizes beyond any real array.
    """
    fields = expect(json_value(data, where), dict, "the array's metadata", where)
    array = _parse_zarr2(fields, where) if file_name == ZARR2_FILE else _parse_zarr3(fields, where)
    _refuse_absurd(array, where)
    return array


def _parse_zarr2(fields: Mapping[str, Any], where: str) -> ZarrArray:
    _check_format(fields, 2, where)
    shape = expect_sizes(fields.get("shape"), "shape", where)
    chunks = expect_sizes(fields.get("chunks"), "chunks", where, smallest=1)
    dtype, is_little = _zarr2_dtype(fields.get("dtype"), where)
    order = fields.get("order", "C")
    if order not in ("C", "F"):
        raise CorruptError(f"{where}: order should be 'C' or 'F', but is {shorten(order)}")
    encoding = zarr2_encoding(fields, where)
    if not is_little:
        encoding = BY_TENSORSTORE
    elif order == "F" and encoding is not BY_TENSORSTORE:
        encoding = turned(encoding, range(len(shape))[::-1])
    return ZarrArray(
        shape, dtype, chunks, chunks, encoding,
        fill_bytes(fields.get("fill_value"), dtype, where),
        _separator(fields.get("dimension_separator", "."), where), prefixed=False,
    )  # fmt: skip


def _zarr2_dtype(text: Any, where: str) -> tuple[str, bool]:
    """The dtype's name, and True if its elements are stored little-endian."""
    if isinstance(text, str) and text in DTYPES:
        return text, True
    name = _ZARR2_NAMES.get(text[1:]) if isinstance(text, str) and text[:1] in "<>|" else None
    if name is None:
        raise _unknown_dtype(text, where)
    return name, text[0] != ">" or name in ("bool", "int8", "uint8")


def _parse_zarr3(fields: Mapping[str, Any], where: str) -> ZarrArray:
    _check_format(fields, 3, where)
    if fields.get("node_type") != "array":
        raise CorruptError(
            f"{where}: node_type should be 'array', but is {shorten(fields.get('node_type'))}"
        )
    shape = expect_sizes(fields.get("shape"), "shape", where)
    values = _zarr3_grid(fields.get("chunk_grid"), where)
    dtype = fields.get("data_type")
    if not isinstance(dtype, str) or dtype not in DTYPES:
        raise _unknown_dtype(dtype, where)
    separator, prefixed = _zarr3_keys(fields.get("chunk_key_encoding"), where)
    chain = zarr3_encoding(fields.get("codecs"), storage_bytes(dtype) > 1, len(shape), where)
    chunks, indexing = values, None
    if chain.shard is not None:
        chunks = expect_sizes(
            chain.shard.chunk_shape, "the chunk_shape of sharding_indexed", where, 1
        )
        indexing = ShardIndexing(
            _divide(values, chunks, where), chain.shard.at_end, chain.shard.checksum
        )
    return ZarrArray(
        shape, dtype, values, chunks, chain.encoding,
        fill_bytes(fields.get("fill_value"), dtype, where), separator, prefixed, indexing,
    )  # fmt: skip


def _zarr3_grid(grid: Any, where: str) -> tuple[int, ...]:
    fields = expect(grid, dict, "chunk_grid", where)
    if fields.get("name") != "regular":
        raise FormatError(
            f"{where}: the chunk grid {shorten(fields.get('name'))} is not supported; supported is "
            "'regular'"
        )
    configuration = expect(fields.get("configuration"), dict, "chunk_grid's configuration", where)
    return expect_sizes(configuration.get("chunk_shape"), "chunk_shape", where, smallest=1)


def _zarr3_keys(encoding: Any, where: str) -> tuple[Literal["/", "."], bool]:
    fields = expect(encoding, dict, "chunk_key_encoding", where)
    name = fields.get("name")
    if name not in ("default", "v2"):
        raise FormatError(
            f"{where}: the chunk key encoding {shorten(name)} is not supported; supported are "
            "'default' and 'v2'"
        )
    configuration = expect(fields.get("configuration", {}), dict, "chunk_key_encoding", where)
    usual = "/" if name == "default" else "."
    return _separator(configuration.get("separator", usual), where), name == "default"


def _separator(value: Any, where: str) -> Literal["/", "."]:
    if value == "/":
        return "/"
    if value == ".":
        return "."
    raise CorruptError(f"{where}: the separator should be '/' or '.', but is {shorten(value)}")


def _divide(values: tuple[int, ...], chunks: tuple[int, ...], where: str) -> tuple[int, ...]:
    if len(values) != len(chunks) or any(v % c for v, c in zip(values, chunks, strict=True)):
        raise CorruptError(
            f"{where}: shards of shape {list(values)} should divide into inner chunks, but those "
            f"have shape {list(chunks)}"
        )
    return tuple(v // c for v, c in zip(values, chunks, strict=True))


def _check_format(fields: Mapping[str, Any], version: int, where: str) -> None:
    if fields.get("zarr_format") != version:
        raise CorruptError(
            f"{where}: zarr_format should be {version}, but is {shorten(fields.get('zarr_format'))}"
        )


def _unknown_dtype(value: Any, where: str) -> FormatError:
    return FormatError(
        f"{where}: the dtype {shorten(value)} is not supported; supported are {', '.join(DTYPES)}"
    )


def _refuse_absurd(array: ZarrArray, where: str) -> None:
    """Raises FormatError for absurd sizes, before anything of that size is built."""
    rank = len(array.shape)
    if rank > MAX_RANK:
        raise FormatError(f"{where}: {rank} dimensions are too many; at most {MAX_RANK} are read")
    if len(array.chunk_shape) != rank:
        raise CorruptError(
            f"{where}: shape {list(array.shape)} and chunk shape {list(array.chunk_shape)} should "
            "have the same number of dimensions"
        )
    itemsize = storage_bytes(array.dtype)
    for what, shape in (("the tensor", array.shape), ("a chunk", array.value_shape)):
        if math.prod(shape) * itemsize > MAX_TENSOR_BYTES:
            raise FormatError(
                f"{where}: {what} of shape {shorten(list(shape))} would take more than 2^62 bytes; no "
                "storage holds that"
            )
    chunks = math.prod(-(-n // c) for n, c in zip(array.shape, array.chunk_shape, strict=True))
    if chunks > MAX_CHUNKS or (array.indexing and math.prod(array.indexing.parts) > MAX_CHUNKS):
        raise FormatError(
            f"{where}: shape {shorten(list(array.shape))} in chunks of "
            f"{shorten(list(array.chunk_shape))} makes more than {MAX_CHUNKS:,} chunks, which is more "
            "than is read"
        )


_WORDS = {"NaN": "nan", "Infinity": "inf", "-Infinity": "-inf"}

_WITHOUT_ZERO = ("float8_e8m0fnu",)
"""Types that have powers of two only; 0 becomes NaN in them."""


def fill_bytes(value: Any, dtype: str, where: str) -> bytes:
    """Little-endian bytes of the fill element; zeros for null.

    ``value`` may be a number, a boolean, a pair (complex), NaN, Infinity or -Infinity, raw bits
    as ``"0x…"`` (zarr 3) and raw bytes as base64 (zarr 2).

    Raises CorruptError for a value that is not an element of that dtype.
    """
    if value is None or _is_zero(value, dtype):
        return bytes(storage_bytes(dtype))
    try:
        element = _raw(value, dtype) or _number(value, numpy_dtype(dtype))
    except (LookupError, ValueError, TypeError, ArithmeticError, binascii.Error):
        element = b""
    if len(element) != storage_bytes(dtype):
        raise CorruptError(
            f"{where}: fill_value should be an element of {dtype}, but is {shorten(value)}"
        )
    return element


def _is_zero(value: Any, dtype: str) -> bool:
    """True if it is the usual fill 0, which needs no package of number types."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and str(value) in ("0", "0.0") and dtype not in _WITHOUT_ZERO


def _raw(value: Any, dtype: str) -> bytes:
    if not isinstance(value, str) or value in _WORDS:
        return b""
    if value.startswith("0x"):
        return int(value, 0).to_bytes(storage_bytes(dtype), "little")
    return base64.b64decode(value, validate=True)


def _parsed(value: Any) -> Any:
    """A number, a boolean, a pair of numbers as one complex, or a word."""
    if isinstance(value, list):
        real, imaginary = (
            float(_WORDS.get(v, v)) if isinstance(v, str) else float(v) for v in value
        )
        return complex(real, imaginary)
    return float(_WORDS[value]) if isinstance(value, str) else value


def _fitting(number: Any, dtype: np.dtype) -> Any:
    if isinstance(number, complex) and dtype.kind != "c":
        raise TypeError("a pair of numbers is complex")
    if dtype.kind == "b" and number not in (0, 1):
        raise TypeError("a boolean is 0 or 1")
    return number


def _number(value: Any, dtype: np.dtype) -> bytes:
    import numpy as np

    number = _fitting(_parsed(value), dtype)
    if isinstance(number, float) and number.is_integer() and "int" in dtype.name:
        number = int(number)
    with np.errstate(all="raise", under="ignore"):
        element = np.asarray(number).astype(dtype)
    if "int" in dtype.name and (not isinstance(number, int) or int(element) != number):
        raise OverflowError("no integer, or one that does not fit")
    return element.tobytes()
