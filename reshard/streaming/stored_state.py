"""A digest of the places of a box's bytes; it changes when the bytes may have changed."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterator

from msgspec import Struct

from reshard.formats.base import Reader
from reshard.formats.contents import Extent, StoredTensor
from reshard.geometry.box import Box
from reshard.storage.location import file_state, locate

_VERSION = "reshard stream 1"
_NOT_STORED = " not stored"


class StoredState(Struct, frozen=True):
    """Where the bytes of a box are.

    Attributes:
        digest: of the request, and of the files and offsets of its bytes, 32 hex digits.
        missing_chunks: how many of its chunks are not stored.
    """

    digest: str
    missing_chunks: int


def stored_state(reader: Reader, stored: StoredTensor, box: Box, dtype: str) -> StoredState:
    """The state of a box now.

    A local file is identified by its name, size and modification time (ns), one in a bucket by its version. Raises StorageError if a file cannot
    be looked at, CorruptError if a chunk is missing that must be there.
    """
    found, missing = hashlib.sha256(), 0
    for line in _lines(reader, stored, box, dtype):
        found.update(line.encode(errors="surrogateescape") + b"\n")
        missing += line.endswith(_NOT_STORED)
    return StoredState(found.hexdigest()[:32], missing)


def _lines(reader: Reader, stored: StoredTensor, box: Box, dtype: str) -> Iterator[str]:
    spec, encoding = stored.spec, stored.encoding
    yield repr((_VERSION, spec.name, spec.shape, spec.dtype, box.start, box.stop, dtype))
    yield repr((spec.storage.cuts, spec.chunk_shape, stored.fill, stored.digest))
    coded = (encoding.compressor, encoding.level, encoding.checksum, encoding.spec)
    yield repr((*coded, encoding.axis_order) if encoding.axis_order else coded)
    files: dict[str, str] = {}
    root = str(locate(reader.uri))
    for index in itertools.product(*spec.storage.overlapping(box)):
        extent = reader.locate(spec.name, index)
        if extent is None:
            yield f"{index}{_NOT_STORED}"
            continue
        inline = hashlib.sha256(extent.inline).hexdigest() if extent.inline is not None else ""
        for path, version, place in _places(extent):
            if path not in files:
                files[path] = _of_file(path, version, root)
            yield f"{place} {inline} {files[path]}"


def _places(extent: Extent) -> Iterator[tuple[str, str, str]]:
    """The files that contain the chunk, their versions, and the place in each."""
    if extent.pieces is None:
        yield extent.path, extent.version, f"{extent.offset} {extent.length}"
        return
    for piece in extent.pieces.pieces:
        yield piece.path, piece.version, f"{piece.offset} {piece.box} {piece.order}"


def _of_file(path: str, version: str, root: str) -> str:
    return f"{path.removeprefix(root)}\0{version or file_state(path)}"
