"""ShardStream: the tensors of one device as one safetensors file, streamed."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from itertools import accumulate

from reshard.formats.base import Reader
from reshard.formats.safetensors.write.header import HeaderEntry, safetensors_header
from reshard.layout.slice_info import SaveSliceInfo
from reshard.streaming.shard_parts import ShardPart, StreamedShard
from reshard.streaming.tensor_stream import TensorStream

GATHERED_BYTES = 256 << 10
"""Small tensors are joined up to this size: handing over a piece costs as much as copying this many bytes."""


class ShardStream:
    """One shard as a safetensors file, which can be read in ranges and more than once.

    Made by ``OpenedCheckpoint.stream_shard``. Its metadata has one entry, ``reshard.slices``: JSON with the
    number of the shard, the number of all shards, and the offset of each slice in its full tensor.

    Attributes:
        shard, shards: the number of the shard, and the number of all shards.
        names: of its tensors, in the order of their bytes.
        header: the bytes before those of the tensors.
        nbytes: size of the whole file.
        missing_chunks: how many of the chunks that it needs are not stored; the fill value is taken in their place.
        state: a digest; the same state means the same bytes.
    """

    def __init__(self, reader: Reader, shard: StreamedShard, max_memory: int) -> None:
        self.shard = shard.number
        self.shards = shard.count
        self.names = tuple(part.name for part in shard.parts)
        entries = [HeaderEntry(part.name, part.dtype, part.box.shape) for part in shard.parts]
        self.header = safetensors_header(entries, {"reshard.slices": _slices(shard)})
        self._streams = [
            TensorStream(
                reader, part.stored, part.box, part.dtype, max_memory, saturate=part.saturate
            )
            for part in shard.parts
        ]
        sizes = (len(self.header), *(stream.nbytes for stream in self._streams))
        self._starts = tuple(accumulate(sizes, initial=0))
        self.nbytes = self._starts[-1]
        self.missing_chunks = sum(stream.missing_chunks for stream in self._streams)
        self.state = self._state()

    @property
    def memory_bytes(self) -> int:
        """The most memory that one read takes for buffers and decoders."""
        return max((s.memory_bytes for s in self._streams), default=0) + 2 * GATHERED_BYTES

    def __iter__(self) -> Iterator[bytes]:
        return self.read()

    def read(self, start: int = 0, stop: int | None = None) -> Iterator[bytes]:
        """Bytes ``start:stop`` of the file, in pieces, as in ``TensorStream.read``."""
        stop = self.nbytes if stop is None else min(stop, self.nbytes)
        return _gathered(self._pieces(min(max(0, start), stop), stop))

    def _pieces(self, start: int, stop: int) -> Iterator[bytes]:
        yield self.header[start:stop]
        for begin, end, stream in zip(
            self._starts[1:], self._starts[2:], self._streams, strict=False
        ):
            if start < end and begin < stop:
                yield from stream.read(max(0, start - begin), stop - begin)

    def _state(self) -> str:
        found = hashlib.sha256(self.header)
        for stream in self._streams:
            found.update(stream.state.encode())
        return found.hexdigest()[:32]


def _slices(shard: StreamedShard) -> str:
    document = {
        "format": "reshard.slices",
        "version": 1,
        "shard": shard.number,
        "shards": shard.count,
        "tensors": {part.name: _slice(part) for part in shard.parts},
    }
    return json.dumps(document, separators=(",", ":"))


def _slice(part: ShardPart) -> dict[str, object]:
    info = SaveSliceInfo.from_box(part.name, part.stored.spec.shape, part.box)
    return {
        "full_shape": info.full_shape,
        "offset": info.var_offset,
        "shape": info.var_shape,
        "dtype": part.dtype,
    }


def _gathered(pieces: Iterator[bytes]) -> Iterator[bytes]:
    waiting: list[bytes] = []
    size = 0
    for piece in pieces:
        waiting.append(piece)
        size += len(piece)
        if size >= GATHERED_BYTES:
            yield waiting[0] if len(waiting) == 1 else b"".join(waiting)
            waiting, size = [], 0
    if size:
        yield b"".join(waiting)
