"""Writes an encoded chunk whole to its places, or a raw one in pieces and then its end."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from msgspec import Struct

from reshard.checksums.tensor_digest import CRC32C, finish
from reshard.engine.buffers import MAPPED_BYTES, aligned_empty
from reshard.engine.error_context import about_tensor
from reshard.engine.output import TaskOutput
from reshard.engine.task import StoredChunk, TargetChunk, Unit, target_element_type
from reshard.formats.codecs import encode_chunk
from reshard.formats.codecs.source import TRAILER_BYTES
from reshard.formats.contents import Encoding
from reshard.formats.file_map import Place
from reshard.geometry.dtypes import storage_bytes
from reshard.storage.local.files import (
    WRITE_BYTES,
    open_new,
    reserve,
    storage_errors,
    write_all,
)
from reshard.storage.target import write

if TYPE_CHECKING:
    from reshard.engine.buffers import Bytes
    from reshard.storage.local.files import OpenFiles


class EncodedChunk(Struct, frozen=True):
    """A chunk that was stored whole, and its source bytes: the digest is taken from what was encoded, not from what should be.

    Attributes:
        data: its decoded bytes, from which it was encoded.
    """

    target: TargetChunk
    data: Bytes
    stored: StoredChunk


def store_chunk(unit: Unit, target: TargetChunk, data: Bytes, output: TaskOutput) -> EncodedChunk:
    """Encodes a whole chunk of a unit and writes it to its places."""
    with about_tensor(unit.name, target.index, unit.pieces[0].source or unit.name):
        encoded = encode_chunk(unit.encoding, data.data)
        nbytes = sum(map(len, encoded))
        if nbytes <= WRITE_BYTES or not target.places:
            encoded = (b"".join(encoded),)  # one call for a small one and its checksum
        if not target.places and output.put is not None:
            output.put(unit.name, target.index, encoded[0])
        if output.keep is not None:
            elements = data.view(target_element_type(unit.pieces[0])).reshape(target.stored_shape)
            inside = elements[tuple(map(slice, target.box.shape))]  # without the padding of an edge
            output.keep(unit.name, target.box, inside)
        versions = tuple(write_chunk(output, place, encoded) for place in target.places)
    moved, linear = (
        target.box.size * storage_bytes(unit.dtype),
        _linear(unit.encoding, data, encoded),
    )
    found = versions if any(versions) else ()
    return EncodedChunk(target, data, StoredChunk(target.index, linear, moved, nbytes, found))


def _linear(encoding: Encoding, data: Bytes, encoded: Sequence[bytes | memoryview]) -> int:
    if encoding.checksum:
        return 0
    return CRC32C.linear(data if encoding.is_bare else encoded[0])


def write_chunk(output: TaskOutput, place: Place, parts: Sequence[bytes | memoryview]) -> str:
    """Writes the parts of an encoded chunk one behind the other; returns the version of a file that is complete now, or ""."""
    if output.uploads is not None and place.offset is not None:
        return output.uploads.write(place, parts)
    return write(output, place.file, place.offset, parts, in_one_piece)


def in_one_piece(parts: Sequence[bytes | memoryview]) -> bytes | memoryview:
    """The parts as one piece of memory, without a copy if there is only one.

    A large piece is mapped, so that it returns to the system as soon as it is written.
    """
    if len(parts) == 1:
        return parts[0]
    nbytes = sum(map(len, parts))
    if nbytes < MAPPED_BYTES:
        return b"".join(parts)
    whole, at = aligned_empty(nbytes).data, 0
    for part in parts:
        whole[at : at + len(part)] = part
        at += len(part)
    return whole


def write_runs(
    files: OpenFiles, place: Place, data: memoryview, runs: Sequence[tuple[int, int]]
) -> None:
    """Writes a piece of a raw chunk; ``runs`` are the offset and length of each of its parts in the chunk."""
    fd, path, first = open_place(files, place), files.path(place.file), place.start
    start = 0
    for offset, nbytes in runs:
        write_all(fd, data[start : start + nbytes], first + offset, path)
        start += nbytes


def reserve_chunk(files: OpenFiles, target: TargetChunk, itemsize: int) -> None:
    """Reserves the blocks of a raw chunk that will be written in pieces; a padded one keeps its holes."""
    if target.stored_shape == target.box.shape:
        for place in target.places:
            reserve(open_place(files, place), target.box.size * itemsize, place.start)


def open_place(files: OpenFiles, place: Place) -> int:
    """A descriptor of the file that holds a chunk; a missing file of its own is made."""
    return files.fd(place.file, is_shared=place.offset is not None)


def close_chunk(path: str, crc32c: int | None, decoded_bytes: int) -> None:
    """Does ``end_chunk`` for a file that is not open."""
    fd = open_new(path)
    try:
        end_chunk(fd, path, crc32c, decoded_bytes)
    finally:
        with storage_errors("close", path):
            os.close(fd)


def end_chunk(fd: int, path: str, crc32c: int | None, decoded_bytes: int) -> None:
    """Gives the file of a raw chunk its CRC32C trailer (from ``crc32c``, its linear part) and its full size."""
    with storage_errors("finish", path):
        if crc32c is None:
            os.ftruncate(fd, decoded_bytes)
        else:
            trailer = finish(CRC32C, crc32c, decoded_bytes).to_bytes(TRAILER_BYTES, "little")
            write_all(fd, memoryview(trailer), decoded_bytes, path)


def raw_bytes(decoded_bytes: int, *, has_trailer: bool) -> int:
    """The size of a raw chunk as it is stored."""
    return decoded_bytes + TRAILER_BYTES if has_trailer else decoded_bytes
