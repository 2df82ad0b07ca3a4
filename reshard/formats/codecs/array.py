"""Chunks that only TensorStore decodes: read as a region of the array, whole."""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from reshard.errors import CorruptError
from reshard.formats.codecs.source import REMEDY
from reshard.geometry.box import Box


def array_decoder_bytes(decoded_bytes: int) -> int:
    """Memory of one stream: the region, its encoded bytes and the chunk that TensorStore decodes."""
    return 3 * decoded_bytes + (4 << 20)


class ArrayStream:
    """The elements of ``box`` in row-major order, zeros beyond the array's edge."""

    def __init__(self, spec: str, box: Box, dtype: str, decoded_bytes: int, where: str) -> None:
        try:
            region = _read(spec, box, dtype)
        except (ValueError, OSError) as error:
            raise CorruptError(
                f"{where}: TensorStore cannot read {box}: {error}; {REMEDY}"
            ) from error
        if region.nbytes != decoded_bytes:
            raise CorruptError(
                f"{where}: TensorStore reads {region.nbytes} bytes at {box}, but {decoded_bytes} are "
                f"expected; {REMEDY}"
            )
        self._octets = region.reshape(-1).view(np.uint8)
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
        """Let go of the region."""
        self._octets = self._octets[:0]
        self._position = 0


def _read(spec: str, box: Box, dtype: str) -> np.ndarray[Any, Any]:
    import tensorstore

    # Opened each time: an array that stays open would still read a checkpoint that was replaced.
    array = tensorstore.open(json.loads(spec), read=True, open=True).result()
    if array.dtype.name != dtype:
        raise ValueError(f"its dtype is {array.dtype.name}, not {dtype}")
    within = box.intersect(Box.full(array.shape))
    if within == box:
        return np.ascontiguousarray(array[box.slices].read(order="C").result())
    region = np.zeros(box.shape, array.dtype.numpy_dtype)
    if within is not None:
        region[within.relative_to(box.start).slices] = array[within.slices].read(order="C").result()
    return region
