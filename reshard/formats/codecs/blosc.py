"""Blosc frames (c-blosc 1), decoded block by block.

A frame is a header of 16 bytes (version, codec version, flags, element size; then decoded, block and
frame size, 4 bytes each), the start of each block, and the blocks, in any order. The library decodes only whole
frames, so each block is passed to it as a frame of its own: the same header with the block's sizes. Flag 2 means
that the bytes are stored uncompressed. Source: c-blosc's
README_CHUNK_FORMAT.rst.
"""

from __future__ import annotations

import json
import struct

import numpy as np

from reshard.errors import FormatError
from reshard.formats.codecs.source import Source
from reshard.formats.codecs.stream import INPUT_BYTES, SKIP_BYTES, SourceStream

LARGEST_FRAME = (1 << 31) - 17
"""Decoded bytes that a frame can hold."""

_SMALLEST_AUTOMATIC_BLOCK, _LARGEST_AUTOMATIC_BLOCK = 4 << 10, 1 << 20  # c-blosc 1.21
_BYTES_PER_START = 160
_BLOCK_OVERHEAD = 128  # the sizes of 16 parts, and some slack
_NOTHING = memoryview(b"")

_HEADER = struct.Struct("<4B3I")
_STORED, _UNSPLIT = 0x02, 0x10
_SNAPPY = 2
_VERSION = 2


def block_limits(spec: str, decoded_bytes: int) -> tuple[int, int]:
    """Smallest and largest block of a chunk encoded with these parameters (``Encoding.spec``).

    c-blosc rounds a requested size down to whole elements, or up to 64 KiB if it splits blocks.
    """
    wanted = json.loads(spec).get("blocksize") if spec else 0
    wanted = wanted if isinstance(wanted, int) and wanted > 0 else 0
    least = max(1, wanted // 2) if wanted else _SMALLEST_AUTOMATIC_BLOCK
    return min(least, decoded_bytes), min(max(wanted, _LARGEST_AUTOMATIC_BLOCK), decoded_bytes)


def blosc_decoder_bytes(spec: str, decoded_bytes: int) -> int:
    """Memory of one stream: a block encoded, decoded, and four of the library's scratches (measured)."""
    least, most = block_limits(spec, decoded_bytes)
    starts = _BYTES_PER_START * -(-decoded_bytes // max(1, least))
    return 6 * most + starts + SKIP_BYTES + INPUT_BYTES + (64 << 10)


class BloscStream(SourceStream):
    """One blosc frame; its sizes are checked before anything is allocated."""

    def __init__(self, source: Source, decoded_bytes: int, spec: str) -> None:
        super().__init__(source, decoded_bytes)
        if source.length < _HEADER.size:
            raise source.corrupt(f"a blosc frame has at least 16 bytes, not {source.length}")
        header = _HEADER.unpack(source.read(_HEADER.size))
        self._version, self._codec, self._flags, self._typesize = header[:4]
        self._block_bytes = header[5]
        self._check_sizes(header[4], header[6])
        self._stored = bool(self._flags & _STORED)
        self._blocks = [] if self._stored else self._find_blocks(spec)
        self._block: memoryview | None = None
        self._ready = _NOTHING
        self._index = 0
        room = 0 if self._stored else self._block_bytes + _BLOCK_OVERHEAD + _HEADER.size + 4
        self._encoded = memoryview(bytearray(room))

    def _check_sizes(self, decoded: int, encoded: int) -> None:
        if self._version != _VERSION:
            raise self._source.corrupt(
                f"its blosc frame has format {self._version}, but {_VERSION} is expected"
            )
        if decoded != self._decoded_bytes:
            raise self._source.corrupt(
                f"its blosc frame should decode to {self._decoded_bytes} bytes, but its header says {decoded}"
            )
        if encoded != self._source.length:
            raise self._source.corrupt(
                f"its blosc frame says that it has {encoded} bytes, but {self._source.length} are stored"
            )
        if self._flags & _STORED and encoded != decoded + _HEADER.size:
            raise self._source.corrupt(f"its blosc frame of stored bytes has {encoded} bytes")
        if not self._flags & _STORED and self._flags >> 5 == _SNAPPY:
            raise FormatError(
                f"{self._source.where}: blosc with snappy cannot be decoded here; save the checkpoint "
                "with another codec, or read it through TensorStore"
            )

    def _find_blocks(self, spec: str) -> list[tuple[int, int]]:
        """Start and end of each block; blocks are in any order, and one ends where the next begins."""
        source = self._source
        least, most = block_limits(spec, self._decoded_bytes)
        if not max(1, least) <= self._block_bytes <= max(1, most):
            raise source.corrupt(
                f"its blosc blocks have {self._block_bytes} bytes, but {least} to {most} are expected"
            )
        count = -(-self._decoded_bytes // self._block_bytes)
        first = _HEADER.size + 4 * count
        if first > source.length:
            raise source.corrupt(f"its {count} blosc blocks do not fit {source.length} bytes")
        starts = np.frombuffer(source.read(4 * count), "<u4").astype(np.int64)
        order = np.sort(starts)
        if count and not first <= order[0] <= order[-1] < source.length:
            raise source.corrupt("the blocks of its blosc frame are outside of it")
        following = np.append(order, source.length)
        ends = following[np.searchsorted(order, starts, "right")]
        return list(zip(starts.tolist(), ends.tolist(), strict=True))

    def skip(self, nbytes: int) -> None:
        """Blocks that are skipped whole are not decoded; stored bytes not even read."""
        self._advance(nbytes)
        if self._stored and not self._source.has_checksum:
            self._source.seek(nbytes)
            return
        if not self._stored and nbytes >= len(self._ready):
            self._ready = _NOTHING
            self._index, nbytes = divmod(self._position, self._block_bytes)
            if self._position == self._decoded_bytes:
                return
        self._skip_decoded(nbytes)

    def _make(self, out: memoryview) -> None:
        if self._stored:
            self._source.readinto(out)
            return
        while out:
            size = min(self._block_bytes, self._decoded_bytes - self._index * self._block_bytes)
            if not self._ready and len(out) >= size:
                self._decode(out[:size])
                out = out[size:]
                continue
            if not self._ready:
                self._ready = self._scratch(size)
                self._decode(self._ready)
            count = min(len(out), len(self._ready))
            out[:count] = self._ready[:count]
            out, self._ready = out[count:], self._ready[count:]

    def _scratch(self, size: int) -> memoryview:
        if self._block is None:
            self._block = memoryview(bytearray(self._block_bytes))
        return self._block[:size]

    def _decode(self, out: memoryview) -> None:
        """The next block, as a frame of its own; a shorter last block is never split by the writer."""
        import numcodecs.blosc

        frame = self._next_frame(len(out))
        try:
            numcodecs.blosc.decompress(frame, out)
        except (RuntimeError, ValueError) as error:
            raise self._source.corrupt(
                f"blosc cannot decode block {self._index}: {error}"
            ) from error
        self._index += 1

    def _next_frame(self, size: int) -> memoryview:
        start, end = self._blocks[self._index]
        if end - start > size + _BLOCK_OVERHEAD:
            raise self._source.corrupt(
                f"block {self._index} of its blosc frame takes {end - start} bytes for {size}"
            )
        flags = self._flags | (_UNSPLIT if size < self._block_bytes else 0)
        first = _HEADER.size + 4
        frame = self._encoded[: first + end - start]
        _HEADER.pack_into(
            frame, 0, self._version, self._codec, flags, self._typesize, size, size, len(frame)
        )
        frame[_HEADER.size : first] = first.to_bytes(4, "little")
        self._source.fill(start, frame[first:])
        return frame

    def _check_end(self) -> None:
        """Every byte is part of a block by construction; a trailer is checked by reading again."""
        if self._source.has_checksum and not self._stored:
            self._source.read_rest()
