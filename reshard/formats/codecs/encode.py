"""Encoding whole chunks: compress, then append the checksum."""

from __future__ import annotations

import json
import threading
import zlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

from reshard.errors import FormatError
from reshard.formats.codecs.blosc import LARGEST_FRAME, block_limits
from reshard.formats.codecs.source import TRAILER_BYTES
from reshard.formats.contents import CODECS, DEFAULT_LEVEL, Encoding

T = TypeVar("T")

_Buffer = bytes | memoryview
"""Bytes to be written one after another."""

_SLACK_BYTES = 64 << 10


def encode_chunk(encoding: Encoding, data: memoryview) -> tuple[_Buffer, ...]:
    """The stored bytes of a chunk, in parts that follow one another; raw bytes are not copied.

    ``data`` is the chunk's row-major elements, contiguous; blosc shuffles by the item size of ``data``, unless the
    parameters name another. A zstd frame carries its own checksum also. Raises FormatError if no codec here encodes
    that way.
    """
    itemsize, data = data.itemsize, data.cast("B")
    encoded = data if encoding.compressor == "none" else _compress(encoding, data, itemsize)
    return (encoded, _trailer(encoded)) if encoding.checksum else (encoded,)


def encoder_bytes(encoding: Encoding, decoded_bytes: int) -> int:
    """Upper bound of the memory that encoding a chunk takes, besides the chunk."""
    if encoding.compressor == "none":
        return TRAILER_BYTES
    # No codec here grows a chunk by more than a 128th; zlib and zstd resize a buffer of that size.
    grown = decoded_bytes + decoded_bytes // 128 + _SLACK_BYTES
    if encoding.compressor == "zstd":
        return grown + _zstd_context_bytes(_level(encoding), decoded_bytes)
    if encoding.compressor == "gzip":
        return 2 * grown + (512 << 10)
    return grown + _blosc_context_bytes(encoding, decoded_bytes)


def _compress(encoding: Encoding, data: memoryview, itemsize: int) -> bytes:
    if encoding.compressor == "zstd":
        import zstandard

        compressor = zstandard.ZstdCompressor(level=_level(encoding), write_checksum=True)
        return compressor.compress(data)
    if encoding.compressor == "gzip":
        packer = zlib.compressobj(_level(encoding), wbits=16 + zlib.MAX_WBITS)
        return packer.compress(data) + packer.flush()
    if encoding.compressor == "blosc":
        return _blosc(encoding, data, itemsize)
    raise FormatError(
        f"chunks cannot be written with codec {encoding.compressor!r}; choose {CODECS}"
    )


def _blosc(encoding: Encoding, data: memoryview, itemsize: int) -> bytes:
    import numcodecs.blosc

    if len(data) > LARGEST_FRAME:
        raise FormatError(
            f"blosc encodes at most {LARGEST_FRAME} bytes per chunk, not {len(data)}; choose smaller "
            "chunks or another codec"
        )
    given: dict[str, Any] = json.loads(encoding.spec) if encoding.spec else {}
    call = partial(
        numcodecs.blosc.compress,
        data,
        str(given.get("cname", "lz4")).encode(),
        _level(encoding),
        _shuffle(given),
        int(given.get("blocksize") or 0),
        typesize=int(given.get("typesize") or itemsize),
    )
    return bytes(_off_the_main_thread(call))


def _off_the_main_thread(call: Callable[[], T]) -> T:
    """Calls on another thread: on the main one numcodecs lets blosc use all cores, with scratches for each of them."""
    if threading.current_thread() is not threading.main_thread():
        return call()
    with ThreadPoolExecutor(1) as worker:
        return worker.submit(call).result()


def _shuffle(given: dict[str, Any]) -> int:
    """zarr3 names the shuffle, zarr2 numbers it."""
    names = {"noshuffle": 0, "shuffle": 1, "bitshuffle": 2}
    shuffle = given.get("shuffle", 1)
    return names[shuffle] if shuffle in names else int(shuffle)


def _level(encoding: Encoding) -> int:
    return DEFAULT_LEVEL[encoding.compressor] if encoding.level is None else encoding.level


def _zstd_context_bytes(level: int, decoded_bytes: int) -> int:
    from zstandard import ZstdCompressionParameters

    parameters = ZstdCompressionParameters.from_level(level, source_size=max(1, decoded_bytes))
    return parameters.estimated_compression_context_size()


def _blosc_context_bytes(encoding: Encoding, decoded_bytes: int) -> int:
    """Four blocks, and a zstd context: a level of c-blosc is twice that level of zstd."""
    block = block_limits(encoding.spec, decoded_bytes)[1]
    level = _level(encoding)
    zstd_level = {9: 22, 8: 20}.get(level, 2 * level - 1)
    cname = json.loads(encoding.spec).get("cname") if encoding.spec else None
    return (
        4 * block + (1 << 20) + (_zstd_context_bytes(zstd_level, block) if cname == "zstd" else 0)
    )


def _trailer(data: _Buffer) -> bytes:
    from awscrt.checksums import crc32c

    return int(crc32c(data)).to_bytes(TRAILER_BYTES, "little")
