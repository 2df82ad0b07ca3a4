"""Chunks through gzip or zlib (RFC 1952, 1950), told apart by their first bytes."""

from __future__ import annotations

import zlib

from reshard.formats.codecs.source import Source
from reshard.formats.codecs.stream import INPUT_BYTES, SKIP_BYTES, SourceStream

_EITHER = 32 + zlib.MAX_WBITS
_OUTPUT_BYTES = 256 << 10
_DECODER_BYTES = 64 << 10


def gzip_decoder_bytes() -> int:
    """Memory of one stream: decoder, input and its unused rest, output before its copy."""
    return _DECODER_BYTES + 2 * INPUT_BYTES + 2 * _OUTPUT_BYTES + SKIP_BYTES


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
