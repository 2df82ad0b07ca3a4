"""The least that a restore does: ``python -m benchmarks.restoring.floor SRC``.

Every chunk is read and decoded into memory that is filled for the first time, and summed up where a restore does so:
CRC32C of what is stored, CRC-64/NVME of the elements of a tensor whose digest was recorded. As many threads as a
restore has, the largest chunks first, and nothing else: nothing is planned, checked or rearranged, chunks are
found before the clock starts, and their memory becomes no array.
"""

from __future__ import annotations

import math
import os
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import zstandard
from awscrt.checksums import crc32c, crc64nvme
from msgspec import Struct

from benchmarks.peers.io_bytes import read_bytes
from reshard.engine.buffers import aligned_empty
from reshard.formats.contents import Extent
from reshard.formats.registry import open_reader
from reshard.storage.host import default_workers

if TYPE_CHECKING:
    from reshard.engine.buffers import Bytes


class Chunk(Struct, frozen=True):
    """A stored chunk, and what is done to it."""

    extent: Extent
    decoded_bytes: int
    is_zstd: bool
    has_crc32c: bool
    has_digest: bool


class _Buffer(threading.local):
    """A thread's memory for what is read of a chunk, reused."""

    def __init__(self) -> None:
        self.memory = bytearray()

    def of(self, nbytes: int) -> memoryview:
        if len(self.memory) < nbytes:
            self.memory = bytearray(nbytes)
        return memoryview(self.memory)[:nbytes]


_BUFFER = _Buffer()


def chunks_of(path: str) -> list[Chunk]:
    """Every chunk of a checkpoint, the largest first; SystemExit for codecs that this benchmark leaves out."""
    reader = open_reader(path)
    found = []
    for name, tensor in reader.tensors.items():
        spec, encoding = tensor.spec, tensor.encoding
        if encoding.compressor not in ("none", "zstd"):
            raise SystemExit(f"{name} is stored with {encoding.compressor}; expected none or zstd")
        for index in spec.storage.indices():
            extent = reader.locate(name, index)
            if extent is not None:
                nbytes = math.prod(spec.stored_shape(index)) * spec.itemsize
                is_zstd, has_digest = encoding.compressor == "zstd", tensor.digest is not None
                found.append(Chunk(extent, nbytes, is_zstd, encoding.checksum, has_digest))
    return sorted(found, key=lambda chunk: -chunk.decoded_bytes)


def load(chunk: Chunk) -> Bytes:
    """The decoded chunk, in new memory."""
    out = aligned_empty(chunk.decoded_bytes)
    stored = _BUFFER.of(chunk.extent.length) if chunk.is_zstd else out.data
    encoded = stored[: chunk.extent.length - (4 if chunk.has_crc32c else 0)]
    _read(chunk.extent, encoded)
    if chunk.has_crc32c:
        crc32c(encoded)
    if chunk.is_zstd:
        zstandard.ZstdDecompressor().stream_reader(encoded).readinto(out.data)
    if chunk.has_digest:
        crc64nvme(out.data)
    return out


def _read(extent: Extent, out: memoryview) -> None:
    if extent.inline is not None:
        out[:] = extent.inline[: len(out)]
        return
    file = os.open(extent.path, os.O_RDONLY)
    try:
        done = 0
        while done < len(out):
            done += os.preadv(file, [out[done:]], extent.offset + done)
    finally:
        os.close(file)


def main() -> None:
    """Load the checkpoint that the command line names."""
    chunks = chunks_of(sys.argv[1])
    started, before = time.perf_counter(), read_bytes()
    with ThreadPoolExecutor(default_workers()) as threads:
        kept = list(threads.map(load, chunks))
    print(f"working_s={time.perf_counter() - started:.3f} read_bytes={read_bytes() - before}")
    print(f"needed_bytes={sum(chunk.extent.length for chunk in chunks)} chunks={len(kept)}")


if __name__ == "__main__":
    main()
