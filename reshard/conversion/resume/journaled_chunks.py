"""The chunks of a target that a journal names."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from msgspec import Struct
from msgspec.structs import replace

from reshard.checksums.tensor_digest import CRC32C
from reshard.checksums.tensor_digest import finish as finish_crc
from reshard.engine.accumulator import decoded_bytes
from reshard.engine.output import TargetOutput
from reshard.engine.task import Finished
from reshard.engine.write.chunk_files import raw_bytes
from reshard.formats.codecs.source import TRAILER_BYTES
from reshard.formats.file_map import Place
from reshard.geometry.grid import Index
from reshard.planning.move import Move, Plan

Chunk = tuple[int, Index]
"""A move's number, and the index of a chunk of its target."""


class JournaledChunk(Struct, frozen=True):
    """A chunk that a journal names.

    Attributes:
        places: where it is stored; none if a database keeps it.
        stored_bytes: its size, checksum included; None where it is not closed.
        full_bytes: of its elements.
        crc32c: of its stored bytes without the checksum, where the journal knows it.
        has_trailer: whether that CRC32C follows them.
        versions: of the file at each of its places, as far as the chunk was the last of it; none where files have no versions.
    """

    chunk: Chunk
    places: tuple[Place, ...]
    stored_bytes: int | None
    full_bytes: int
    crc32c: int | None
    has_trailer: bool
    versions: tuple[str, ...] = ()


def journaled_chunks(
    finished: Iterable[Finished], plan: Plan, output: TargetOutput
) -> Iterator[JournaledChunk]:
    """Every chunk that tasks have written to, once; those that are not closed come last."""
    shared: dict[Chunk, tuple[int, int]] = {}
    for task in finished:
        number, move = task.result.move, plan.moves[task.result.move]
        for part in task.result.parts:
            if part.stored_bytes is None:
                crc, nbytes = shared.pop((number, part.index), (0, 0))
                crc, nbytes = crc ^ part.crc32c, nbytes + part.nbytes
                if nbytes < _bytes_in(move, part.index):
                    shared[number, part.index] = (crc, nbytes)
                else:
                    yield _recorded_shared(number, move, part.index, crc, output)
            else:
                crc32c = part.crc32c if _has_crc(move, output) else None
                found = _recorded(number, move, part.index, part.stored_bytes, crc32c, output)
                yield replace(found, versions=part.versions) if part.versions else found
    for number, index in shared:
        yield _recorded(number, plan.moves[number], index, None, None, output)


def _bytes_in(move: Move, index: Index) -> int:
    """Bytes of the tensor's elements in a chunk, padding excluded."""
    spec = move.target.spec
    return spec.storage.box(index).size * spec.itemsize


def _has_crc(move: Move, output: TargetOutput) -> bool:
    """Whether parts of a chunk have its CRC32C; one that is stored whole with a checksum has it at its end only."""
    is_checked = output.encodings[move.target.spec.name].checksum
    return not is_checked or move.strategy in ("scatter", "weave")


def _recorded(
    number: int,
    move: Move,
    index: Index,
    stored: int | None,
    linear: int | None,
    output: TargetOutput,
) -> JournaledChunk:
    name, full = move.target.spec.name, decoded_bytes(move, index)
    places, has_trailer = output.places(name, index), output.encodings[name].checksum
    crc32c = None
    if stored is not None and linear is not None:
        crc32c = finish_crc(CRC32C, linear, max(0, stored - (TRAILER_BYTES if has_trailer else 0)))
    return JournaledChunk((number, index), places, stored, full, crc32c, has_trailer)


def _recorded_shared(
    number: int, move: Move, index: Index, crc: int, output: TargetOutput
) -> JournaledChunk:
    has_trailer = output.encodings[move.target.spec.name].checksum
    stored_bytes = raw_bytes(decoded_bytes(move, index), has_trailer=has_trailer)
    return _recorded(number, move, index, stored_bytes, crc, output)
