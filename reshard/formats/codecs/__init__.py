"""Decoding and encoding of chunks: streams of bounded memory over the codecs' own libraries."""

from __future__ import annotations

from msgspec.structs import replace

from reshard.formats.codecs.blosc import BloscStream, blosc_decoder_bytes
from reshard.formats.codecs.compressed import (
    GzipStream,
    ZstdStream,
    gzip_decoder_bytes,
    zstd_decoder_bytes,
    zstd_encoded_bytes,
)
from reshard.formats.codecs.encode import encode_chunk, encoder_bytes
from reshard.formats.codecs.source import Source
from reshard.formats.codecs.stream import (
    AtOnceStream,
    DecodeStream,
    FillStream,
    RawStream,
    TurnedStream,
)
from reshard.formats.codecs.tensorstore import ArrayStream, array_decoder_bytes
from reshard.formats.contents import Encoding, Extent
from reshard.geometry.dtypes import storage_bytes
from reshard.storage.base import Store

__all__ = [
    "DecodeStream",
    "decoder_bytes",
    "encode_chunk",
    "encoded_room",
    "encoder_bytes",
    "is_seekable",
    "open_fill",
    "open_stream",
    "read_ahead",
]


def open_stream(
    encoding: Encoding,
    extent: Extent,
    decoded_bytes: int,
    where: str,
    *,
    inside: tuple[int, ...] = (),
    dtype: str = "",
    shape: tuple[int, ...] = (),
    encoded: memoryview | None = None,
    wanted_bytes: int | None = None,
) -> DecodeStream:
    """The decoded bytes of one chunk; their number must be ``decoded_bytes``.

    Args:
        where: names tensor and chunk in messages, such as ``"tensor 'a/b', chunk (0, 1)"``.
        inside: the shape of its part inside of the tensor, and
        dtype: of its elements; both are needed if the compressor is ``"tensorstore"``.
        shape: of the chunk, padding included; needed if the encoding has an ``axis_order``.
        encoded: memory of ``encoded_room`` bytes, given if the first ``readinto`` will ask for everything.
        wanted_bytes: the number of decoded bytes, from the start, that will be read; None for all.

    Raises StorageError if the file cannot be read, CorruptError if sizes contradict each other.
    """
    stored_bytes = wanted_bytes if is_seekable(encoding) else None
    source = Source(extent, where, encoding.checksum, encoding.read_ahead_bytes, stored_bytes)
    try:
        if encoding.compressor == "tensorstore":
            return ArrayStream(source, encoding.spec, inside, dtype, decoded_bytes)
        if encoding.axis_order:
            stored = _decoder(encoding, source, decoded_bytes, None)
            if len(encoding.axis_order) > len(shape):
                shape = (*shape, storage_bytes(dtype))
            return TurnedStream(stored, shape, encoding.axis_order, decoded_bytes)
        return _decoder(encoding, source, decoded_bytes, encoded)
    except BaseException:
        source.close()
        raise


def open_fill(fill: bytes, decoded_bytes: int) -> DecodeStream:
    """The decoded bytes of a chunk that is not stored: the element ``fill`` repeated."""
    return FillStream(fill, decoded_bytes)


def decoder_bytes(encoding: Encoding, decoded_bytes: int) -> int:
    """Upper bound of the memory that one stream takes; arithmetic only."""
    if encoding.compressor == "computed":
        return int(encoding.spec)
    ahead_bytes = min(encoding.read_ahead_bytes, zstd_encoded_bytes(decoded_bytes))
    turned_bytes = decoded_bytes if encoding.axis_order else 0
    return ahead_bytes + _decoder_bytes(encoding, decoded_bytes) + turned_bytes


def _decoder_bytes(encoding: Encoding, decoded_bytes: int) -> int:
    if encoding.compressor == "zstd":
        return zstd_decoder_bytes(encoding.level)
    if encoding.compressor in ("gzip", "zlib"):
        return gzip_decoder_bytes()
    if encoding.compressor == "blosc":
        return blosc_decoder_bytes(encoding.spec, decoded_bytes)
    if encoding.compressor == "tensorstore":
        return array_decoder_bytes(decoded_bytes)
    return decoded_bytes if encoding.gathered == "at once" else 0


def read_ahead(encoding: Encoding, store: Store) -> Encoding:
    """The encoding for chunks in a store, where streams read ahead if requests take long.

    Chunks that TensorStore decodes are read whole.
    """
    nbytes = store.traits.read_ahead_bytes
    if not nbytes or encoding.compressor == "tensorstore":
        return encoding
    return replace(encoding, read_ahead_bytes=nbytes)


def encoded_room(encoding: Encoding, decoded_bytes: int) -> int:
    """Extra memory with which a chunk is decoded in one call; 0 if that is not faster.

    The decoder still needs its memory for a stream: a zstd frame without a size in its header needs its window.
    """
    gains = encoding.compressor == "zstd" and not encoding.axis_order
    return zstd_encoded_bytes(decoded_bytes) if gains else 0


def is_seekable(encoding: Encoding) -> bool:
    """True if ``skip`` costs nothing, so that a part of a chunk can be read alone."""
    is_raw = encoding.compressor == "none" and not encoding.axis_order
    return is_raw and encoding.gathered != "at once"


def _decoder(
    encoding: Encoding, source: Source, decoded_bytes: int, encoded: memoryview | None
) -> DecodeStream:
    if encoding.compressor == "zstd":
        return ZstdStream(source, decoded_bytes, encoding.level, encoded)
    if encoding.compressor in ("gzip", "zlib"):
        return GzipStream(source, decoded_bytes)
    if encoding.compressor == "blosc":
        return BloscStream(source, decoded_bytes, encoding.spec)
    if encoding.gathered == "at once":
        return AtOnceStream(source, decoded_bytes)
    return RawStream(source, decoded_bytes)
