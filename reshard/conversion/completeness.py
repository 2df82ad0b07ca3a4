"""Checks that every chunk is there and has its size, without reading it."""

from __future__ import annotations

import math

from reshard.engine.output import TargetOutput
from reshard.errors import CorruptError, StorageError
from reshard.formats.base import Encoding, Place, Reader
from reshard.formats.codecs.source import TRAILER_BYTES
from reshard.geometry.grid import Index
from reshard.layout.tensor_spec import TensorSpec
from reshard.planning.move import Plan
from reshard.storage.local import has_data, size_if_there


def check_stored(plan: Plan, output: TargetOutput) -> None:
    """Raises StorageError, naming a tensor and its chunk, unless every chunk is below the output's root.

    A worker that writes elsewhere, or someone who cleans up, does not disturb any digest.
    """
    for move in plan.moves:
        spec = move.target.spec
        encoding = output.encodings[spec.name]
        for index in spec.storage.indices():
            for place in output.places(spec.name, index):
                path = f"{output.root}/{place.file}"
                if not _is_stored(path, place, _raw_bytes(spec, index, encoding)):
                    raise StorageError(
                        f"tensor {spec.name!r}, chunk {list(index)}: it was written, but is not whole in {path!r}; "
                        "nothing was published; leave that folder alone, give only executors whose workers share "
                        "this file system, and run again"
                    )


def _is_stored(path: str, place: Place, nbytes: int | None) -> bool:
    """``nbytes``: the chunk's size; None if it is known only from the file."""
    if place.offset is not None:
        return has_data(path, place.offset, nbytes or 0)
    found = size_if_there(path)
    return found is not None and found == (nbytes or found)


def _raw_bytes(spec: TensorSpec, index: Index, encoding: Encoding) -> int | None:
    """The size of a chunk that is not compressed, of which alone it is known."""
    if encoding.compressor != "none":
        return None
    trailer_bytes = TRAILER_BYTES if encoding.checksum else 0
    return math.prod(spec.stored_shape(index)) * spec.itemsize + trailer_bytes


def check_complete(reader: Reader) -> None:
    """Raises CorruptError, naming a tensor and its chunk, where one of a checkpoint is gone or cut short."""
    for name, stored in reader.tensors.items():
        for index in stored.spec.storage.indices():
            extent = reader.locate(name, index)
            expected = _raw_bytes(stored.spec, index, stored.encoding)
            if extent is not None and extent.length != (expected or extent.length):
                raise CorruptError(
                    f"tensor {name!r}, chunk {list(index)}: expected {expected} bytes in {extent.path!r}, found "
                    f"{extent.length}"
                )
