"""The journal: the units that a run has filled, so that another run can resume there, and the chunks that it names.

The records of a target's transaction (``storage.transaction``), each a JSON list of results (``engine.task.Result``), written
after their last byte was handed to the store. Locally nothing is synced: after a reboot nothing of it is trusted before it is
read again (``conversion.resumed``). In a bucket a chunk is stored if its object is listed in the version that was put: an
object appears whole, so that one listing tells of all of its chunks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

import msgspec
from msgspec import Struct

from reshard.checksums.crc import CRC32C, finish
from reshard.engine.books import DoneUnits, closed_bytes, merged_chunk, padded_bytes
from reshard.engine.output import TargetOutput
from reshard.engine.task import Result, StoredChunk
from reshard.formats.codecs.source import TRAILER_BYTES
from reshard.formats.file_map import Place
from reshard.geometry.grid import Index
from reshard.layout.tensor_spec import TensorSpec
from reshard.planning.plans import Plan, TensorPlan
from reshard.storage.location import Location
from reshard.storage.target import FileRange, look

_DECODER = msgspec.json.Decoder(list[Result])


def record_of(results: Sequence[Result]) -> str:
    """The record of units whose bytes were all handed to the store."""
    return msgspec.json.encode(list(results)).decode()


def read_results(records: Iterable[bytes], plan: Plan) -> Iterator[Result]:
    """The units that are recorded, each once, up to the first record that makes no sense."""
    seen = DoneUnits(plan)
    for record in records:
        try:
            results = _DECODER.decode(record)
        except (msgspec.DecodeError, RecursionError):
            return
        if not all(_is_planned(result, plan.tensors) for result in results):
            return
        for result in results:
            if not seen.has(result.tensor, result.unit):
                seen.add(result.tensor, result.unit)
                yield result


def moved_by(record: bytes) -> tuple[int, int]:
    """The bytes that the units of a record moved, and their number; zeros for a record of something else."""
    try:
        results = _DECODER.decode(record)
    except (msgspec.DecodeError, RecursionError):
        return 0, 0
    return sum(result.moved_bytes for result in results), len(results)


def _is_planned(result: Result, tensors: Sequence[TensorPlan]) -> bool:
    """True if the plan has the unit, its pieces and its chunks."""
    if result.tensor >= len(tensors):
        return False
    tensor = tensors[result.tensor]
    try:
        fill, _ = tensor.fill_at(result.unit)
    except IndexError:
        return False
    parts = tensor.target.spec.storage.parts
    return len(result.sums) == len(fill.pieces) and all(
        len(chunk.index) == len(parts)
        and all(i < n for i, n in zip(chunk.index, parts, strict=True))
        for chunk in result.chunks
    )


ChunkKey = tuple[int, Index]
"""A target tensor's number, and the index of a chunk of it."""


class JournaledChunk(Struct, frozen=True):
    """A chunk that a journal names, with its facts from the plan.

    Attributes:
        places: its places in files; none if a database keeps it.
        full_bytes: size of its elements.
        has_trailer: true if a CRC32C of its bytes follows them.
        is_summed: true if ``stored.crc32c`` is known; false for a chunk that was stored whole with a checksum.
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
                lambda c, spec=spec, encoding=encoding: closed_bytes(spec, encoding, c.index),  # type: ignore[misc]  # defaults bind the loop variables
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
        for number, place in enumerate(chunk.places)
        if not _is_there(chunk, number, is_stored)
    }
    return {chunk.key for chunk in journaled() if any(place.file in bad for place in chunk.places)}


def _is_there(chunk: JournaledChunk, number: int, is_stored: Callable[[FileRange], bool]) -> bool:
    """True if a chunk is stored at one of its places, as it was put."""
    versions = chunk.stored.versions
    # Against a changed record: one of another number of versions is not of this plan.
    if chunk.stored_bytes is None or len(versions) not in (0, len(chunk.places)):
        return False
    place = chunk.places[number]
    version = versions[number] if versions else ""
    return is_stored(FileRange(place.file, place.offset, chunk.stored_bytes, version))
