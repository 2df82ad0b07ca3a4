"""The chunks of a target that a journal names, and which of them a bucket has.

In a bucket a chunk is stored if its object is listed in the version that was put: an object appears whole, so that one listing
tells of all of its chunks. ``check_chunks`` decides on a disk.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from msgspec import Struct

from reshard.checksums.crc import CRC32C, finish
from reshard.engine.output import TargetOutput
from reshard.engine.task import Result, StoredChunk
from reshard.engine.tensor_book import closed_bytes, merged_chunk, padded_bytes
from reshard.formats.codecs.source import TRAILER_BYTES
from reshard.formats.file_map import Place
from reshard.geometry.grid import Index
from reshard.layout.tensor_spec import TensorSpec
from reshard.planning.tensor_plan import Plan
from reshard.storage.location import Location
from reshard.storage.target import FileRange, look

ChunkKey = tuple[int, Index]
"""A target tensor's number, and the index of a chunk of it."""


class JournaledChunk(Struct, frozen=True):
    """A chunk that a journal names, with what the plan knows of it.

    Attributes:
        places: where it is stored; none if a database keeps it.
        full_bytes: of its elements.
        has_trailer: whether a CRC32C of its bytes follows them.
        is_summed: whether ``stored.crc32c`` is known: not of a chunk that was stored whole with a checksum.
    """

    tensor: int
    stored: StoredChunk
    places: tuple[Place, ...]
    full_bytes: int
    has_trailer: bool
    is_summed: bool

    @property
    def key(self) -> ChunkKey:
        return self.tensor, self.stored.index

    @property
    def stored_bytes(self) -> int | None:
        """Its size, checksum included; None where it is not closed."""
        return self.stored.stored_bytes

    @property
    def crc32c(self) -> int | None:
        """CRC32C of its stored bytes without the checksum, where the journal knows it."""
        if not self.is_summed or self.stored_bytes is None:
            return None
        trailer_bytes = TRAILER_BYTES if self.has_trailer else 0
        return finish(CRC32C, self.stored.crc32c, max(0, self.stored_bytes - trailer_bytes))


def journaled_chunks(
    results: Iterable[Result], plan: Plan, output: TargetOutput
) -> Iterator[JournaledChunk]:
    """Every chunk that units have written to, once; those that are not closed come last."""
    open_chunks: dict[int, dict[Index, StoredChunk]] = {}
    for result in results:
        number, tensor = result.tensor, plan.tensors[result.tensor]
        spec, strategy = tensor.target.spec, tensor.fill_at(result.unit)[0].strategy
        encoding = output.encodings[spec.name]
        # One that is stored whole with a checksum has it at its end only.
        is_summed = not encoding.checksum or strategy in ("scatter", "weave")
        for part in result.chunks:
            chunk = merged_chunk(
                spec,
                open_chunks.setdefault(number, {}),
                part,
                lambda c, spec=spec, encoding=encoding: closed_bytes(spec, encoding, c.index),  # type: ignore[misc]
            )
            if chunk is not None:
                yield _journaled(number, spec, chunk, output, is_summed=is_summed)
    for number, chunks in open_chunks.items():
        spec = plan.tensors[number].target.spec
        for chunk in chunks.values():
            yield _journaled(number, spec, chunk, output, is_summed=False)


def _journaled(
    number: int, spec: TensorSpec, chunk: StoredChunk, output: TargetOutput, *, is_summed: bool
) -> JournaledChunk:
    places = output.places(spec.name, chunk.index)
    has_trailer = output.encodings[spec.name].checksum
    full = padded_bytes(spec, chunk.index)
    return JournaledChunk(number, chunk, places, full, has_trailer, is_summed)


Journaled = Callable[[], Iterable[JournaledChunk]]
"""Gives every chunk of a journal, anew with each call."""


def missing_in_bucket(journaled: Journaled, root: Location) -> set[ChunkKey]:
    """The chunks whose objects are gone, or are not those that were put."""
    is_stored = look(root)
    bad = {
        place.file
        for chunk in journaled()
        for place, version in zip(chunk.places, _versions(chunk), strict=True)
        if chunk.stored_bytes is None
        or not is_stored(FileRange(place.file, place.offset, chunk.stored_bytes, version))
    }
    return {chunk.key for chunk in journaled() if any(place.file in bad for place in chunk.places)}


def _versions(chunk: JournaledChunk) -> tuple[str, ...]:
    return chunk.stored.versions or ("",) * len(chunk.places)
