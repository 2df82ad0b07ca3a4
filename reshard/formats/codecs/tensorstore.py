"""TensorStore's package, for calls that start its threads, and chunks that only it decodes.

TensorStore ends a process that was forked after its threads worked. Idle threads end, so that this project's own calls are remembered.
Threads of others (Orbax) are looked for when the process forks.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

import numpy as np

from reshard.formats.codecs.source import Source
from reshard.storage.host import forked_error, thread_names

_THREAD = "ts_pool_worker"

_has_worked = False
_is_child = False
"""True if this process was forked from one in which TensorStore's threads had worked."""


def tensorstore(action: str) -> Any:
    """The package, to do ``action`` with. StorageError where that would end the process.

    Opening an array or a store in memory needs no threads; then import the package itself.
    """
    global _has_worked
    if _is_child:
        raise forked_error(action, "TensorStore", "TensorStore would end it")
    import tensorstore as ts

    _has_worked = True
    return ts


def _before_fork() -> None:
    global _has_worked
    if "tensorstore" in sys.modules:
        _has_worked = _has_worked or _THREAD in thread_names()


def _in_child() -> None:
    global _is_child
    _is_child = _is_child or _has_worked


os.register_at_fork(before=_before_fork, after_in_child=_in_child)


_SLACK_BYTES = 1 << 20


def array_decoder_bytes(decoded_bytes: int) -> int:
    """Memory of one stream: its encoded bytes twice, and four times its decoded ones.

    The four are the codec's output, the same in one piece, its elements in this machine's byte order, and the result in
    row-major order; measured with blosc, order F and big-endian elements.
    """
    return 2 * _most_encoded_bytes(decoded_bytes) + 4 * decoded_bytes + _SLACK_BYTES


def _most_encoded_bytes(decoded_bytes: int) -> int:
    """The most bytes of an encoded chunk, which its codecs may enlarge, and which may have the index of a shard."""
    return decoded_bytes + decoded_bytes // 16 + _SLACK_BYTES


class ArrayStream:
    """The elements of a chunk in row-major order, zeros beyond the tensor's edge.

    Args:
        source: the chunk's encoded bytes; closed here.
        spec: of an array of this one chunk; see ``formats.zarr.metadata``.
        inside: the shape of the part that is inside of the tensor. The rest of a shard may lack its chunks.

    Raises CorruptError if TensorStore cannot decode them.
    """

    def __init__(
        self, source: Source, spec: str, inside: tuple[int, ...], dtype: str, decoded_bytes: int
    ) -> None:
        most = _most_encoded_bytes(decoded_bytes)
        if source.length > most:
            raise source.corrupt(
                f"{source.length:,} bytes should decode to {decoded_bytes:,}, but a chunk of that size "
                f"takes at most {most:,}"
            )
        encoded = source.read()
        try:
            chunk = _decode(spec, encoded, inside)
        except (ValueError, OSError) as error:
            raise source.corrupt(f"TensorStore cannot decode it: {error}") from error
        source.close()
        if (chunk.dtype.name, chunk.nbytes) != (dtype, decoded_bytes):
            raise source.corrupt(
                f"TensorStore decodes {chunk.nbytes:,} bytes of {chunk.dtype.name}, but "
                f"{decoded_bytes:,} of {dtype} are expected"
            )
        self._octets = chunk.reshape(-1).view(np.uint8)
        self._position = 0

    def readinto(self, out: memoryview) -> None:
        octets = np.frombuffer(out, np.uint8)
        start = self._position
        self.skip(len(octets))
        octets[:] = self._octets[start : self._position]

    def skip(self, nbytes: int) -> None:
        if not 0 <= nbytes <= len(self._octets) - self._position:
            raise ValueError(
                f"{nbytes} bytes are requested, but {len(self._octets) - self._position} are left"
            )
        self._position += nbytes

    def close_checked(self) -> bool:
        self.close()
        return True

    def close(self) -> None:
        """Frees the chunk."""
        self._octets = self._octets[:0]
        self._position = 0


def _decode(spec: str, encoded: bytes, inside: tuple[int, ...]) -> np.ndarray[Any, Any]:
    ts = tensorstore("decode a chunk")
    known = json.loads(spec)
    context = ts.Context()  # owns the memory, and frees it
    array = ts.open(known, context=context, open=True, read=True, assume_metadata=True).result()
    key = ".".join("0" * array.rank) or "0"
    ts.KvStore.open(known["kvstore"], context=context).result().write(key, encoded).result()
    del encoded  # TensorStore has a copy
    part = tuple(slice(0, n) for n in inside)
    decoded: np.ndarray[Any, Any] = array[part].read(order="C").result()
    if inside == array.shape:
        return np.ascontiguousarray(decoded)
    chunk = np.zeros(array.shape, decoded.dtype)
    chunk[part] = decoded
    return chunk
