"""Chunks that are one frame of zstd (RFC 8878), or one stream of gzip or zlib (RFC 1952, 1950), told apart by their first bytes.

A stream of zstd decodes into a window, and copies from it. A decoder that gets the whole frame and a buffer for the whole
content decodes straight into the buffer, which takes a fifth less time (measured).

The decoder reports neither a truncated frame nor bytes after it, so the block headers are parsed here too. A block
header is 3 little-endian bytes: bit 0 marks the last block, bits 1-2 are the type (1 = one repeated byte), the other
bits the size. 4 bytes of checksum follow the last block if the frame's header says so.
"""

from __future__ import annotations

import zlib
from functools import lru_cache
from typing import Any

from reshard.formats.codecs.source import Source
from reshard.formats.codecs.stream import INPUT_BYTES, SKIP_BYTES, SourceStream

UNKNOWN_WINDOW_BYTES = 8 << 20
"""Largest window for an unknown level: the size that every decoder must support (RFC 8878, 3.1.1.1.2)."""

_LEVELS = (-131072, 22)
_DECODER_BYTES = 512 << 10  # tables and the block being decoded
_HEADER_BYTES = 18


@lru_cache(maxsize=64)
def window_bytes(level: int | None) -> int:
    """The largest window of a frame of this level, for any size of chunk."""
    if level is None:
        return UNKNOWN_WINDOW_BYTES
    from zstandard import ZstdCompressionParameters

    lowest, highest = _LEVELS
    parameters = ZstdCompressionParameters.from_level(max(lowest, min(level, highest)))
    return 1 << parameters.window_log


def zstd_decoder_bytes(level: int | None) -> int:
    """Memory of one stream: window, decoder, input, and the scratch for skipping."""
    return window_bytes(level) + 2 * INPUT_BYTES + SKIP_BYTES + _DECODER_BYTES


def zstd_encoded_bytes(decoded_bytes: int) -> int:
    """The most that an encoder writes (zstd.h, ZSTD_COMPRESSBOUND), rounded up."""
    return decoded_bytes + (decoded_bytes >> 8) + 64


def refuse_window(source: Source, header: Any, level: int | None) -> None:
    """Raises CorruptError for a frame whose header asks for more memory than one of this level."""
    allowed = window_bytes(level)
    if header.window_size > allowed:
        raise source.corrupt(
            f"its zstd frame needs a window of {header.window_size} bytes, but its recorded level allows {allowed}"
        )


class ZstdStream(SourceStream):
    """A single zstd frame; the plan bounds output and window, not the frame's header.

    With memory for all of its ``encoded`` bytes it reads them at once; the frame is decoded without a window if the
    first call asks for everything.
    """

    def __init__(
        self,
        source: Source,
        decoded_bytes: int,
        level: int | None,
        encoded: memoryview | None = None,
    ) -> None:
        super().__init__(source, decoded_bytes)
        import zstandard

        self._error = zstandard.ZstdError
        whole = None
        if encoded is not None and source.length <= len(encoded):
            whole = encoded[: source.length]
            source.readinto(whole)
        self._frame = _Frame(source, whole)
        self._check_header(self._frame.header)
        refuse_window(source, self._frame.header, level)
        decoder = zstandard.ZstdDecompressor(max_window_size=window_bytes(level))
        if whole is not None:
            self._frame.follow(whole)
            self._reader = decoder.stream_reader(whole)
        else:
            self._reader = decoder.stream_reader(self._frame, read_size=INPUT_BYTES)  # type: ignore[arg-type] # only read is called

    def _check_header(self, header: Any) -> None:
        size = self._decoded_bytes
        if header.content_size not in (size, _UNKNOWN_SIZE):
            raise self._source.corrupt(
                f"its zstd frame should decode to {size} bytes, but its header says {header.content_size}"
            )
        if header.dict_id:
            raise self._source.corrupt(f"its zstd frame needs dictionary {header.dict_id}")

    def _make(self, out: memoryview) -> None:
        done = 0
        while done < len(out):
            try:
                made = self._reader.readinto(out[done:])
            except self._error as error:
                raise self._source.corrupt(f"zstd cannot decode it: {error}") from error
            if not made:
                raise self._cut_off(self._position - len(out) + done)
            done += made

    def _check_end(self) -> None:
        self._refuse_what_follows()
        self._make_nothing()
        self._refuse_what_follows()
        if self._frame.end is None or self._frame.end > self._source.position:
            raise self._cut_off(self._position)

    def _refuse_what_follows(self) -> None:
        end, length = self._frame.end, self._source.length
        if end is not None and end < length:
            raise self._source.corrupt(f"{length - end} bytes follow the end of its zstd frame")

    def _make_nothing(self) -> None:
        """Let the decoder reach the frame's end and its checksum, and check that no more bytes come out."""
        try:
            more = self._reader.read(1)
        except self._error as error:
            raise self._source.corrupt(f"zstd cannot decode it: {error}") from error
        if more:
            raise self._source.corrupt(f"it decodes to more than {self._decoded_bytes} bytes")


_UNKNOWN_SIZE = (1 << 64) - 1


class _Frame:
    """Passes the source's bytes to the decoder, and follows the headers of the frame's blocks.

    Attributes:
        header: the frame's parameters.
        end: the number of bytes of the frame, once its last block was seen.
    """

    def __init__(self, source: Source, whole: memoryview | None) -> None:
        """``whole``: all of the source, if it was read at once."""
        import zstandard

        length = min(_HEADER_BYTES, source.length)
        start = source.at(0, length) if whole is None else whole[:length]
        try:
            self.header = zstandard.get_frame_parameters(start)
            self._next_block = zstandard.frame_header_size(start)
        except zstandard.ZstdError as error:
            raise source.corrupt(f"it is not a zstd frame: {error}") from error
        self.end: int | None = None
        self._source = source
        self._kept = b""

    def read(self, nbytes: int) -> bytes:
        """The next bytes of the source."""
        data = self._source.read(nbytes)
        if self.end is None:
            self.follow(self._kept + data)
        return data

    def follow(self, data: bytes | memoryview) -> None:
        """Finds the headers of blocks in the bytes that were read last."""
        start = self._source.position - len(data)
        while self._next_block + 3 <= start + len(data):
            place = self._next_block - start
            head = int.from_bytes(data[place : place + 3], "little")
            self._next_block += 3 + (1 if head >> 1 & 3 == 1 else head >> 3)
            if head & 1:
                self.end = self._next_block + 4 * self.header.has_checksum
                return
        self._kept = bytes(data[self._next_block - start :])  # nothing, if the block is further on


_EITHER = 32 + zlib.MAX_WBITS
_OUTPUT_BYTES = 256 << 10
_GZIP_DECODER_BYTES = 64 << 10


def gzip_decoder_bytes() -> int:
    """Memory of one stream: decoder, input and its unused rest, output before its copy."""
    return _GZIP_DECODER_BYTES + 2 * INPUT_BYTES + 2 * _OUTPUT_BYTES + SKIP_BYTES


class GzipStream(SourceStream):
    """One gzip or zlib member; its own checksum is compared by zlib when the end is reached."""

    def __init__(self, source: Source, decoded_bytes: int) -> None:
        super().__init__(source, decoded_bytes)
        self._decoder = zlib.decompressobj(_EITHER)
        self._pending = b""

    def _make(self, out: memoryview) -> None:
        done = 0
        while done < len(out):
            data = self._decode(min(_OUTPUT_BYTES, len(out) - done))
            if not data:
                raise self._cut_off(self._position - len(out) + done)
            out[done : done + len(data)] = data
            done += len(data)

    def _decode(self, most: int) -> bytes:
        """The next bytes, up to ``most``; none only at the end of the member or of the source."""
        while not self._decoder.eof:
            # zlib may keep output back although it took all input: ask for output before reading more.
            fed = self._pending or self._source.read(INPUT_BYTES)
            try:
                data = self._decoder.decompress(fed, most)
            except zlib.error as error:
                raise self._source.corrupt(f"zlib cannot decode it: {error}") from error
            self._pending = self._decoder.unconsumed_tail
            if data or not fed:
                return data
        return b""

    def _check_end(self) -> None:
        if self._decode(1):
            raise self._source.corrupt(f"it decodes to more than {self._decoded_bytes} bytes")
        if not self._decoder.eof:
            raise self._cut_off(self._position)
        extra = len(self._decoder.unused_data) + self._source.length - self._source.position
        if extra:
            raise self._source.corrupt(f"{extra} bytes follow the end of its gzip member")
