"""Codec chains of zarr 2 and zarr 3, read into an Encoding, or left to TensorStore."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from reshard.errors import CorruptError, FormatError, shorten
from reshard.formats.encoding import Encoding
from reshard.formats.json.safe_json import expect

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
    if level is not None:
        level = expect(level, int, f"the level of {shorten(name)}", where)
    if name == "zstd":
        return Encoding("zstd", level)
    if name == "gzip":
        return Encoding("gzip", level)
    if name == "blosc":
        kept = {k: v for k, v in configuration.items() if k != "id"}
        return Encoding("blosc", level, spec=json.dumps(kept, sort_keys=True))
    return BY_TENSORSTORE
