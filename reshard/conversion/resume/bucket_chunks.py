"""Which journaled chunks are stored in a bucket: those whose objects are listed in the version that was put.

An object appears whole, so that one listing tells of all of its chunks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from reshard.conversion.resume.journaled_chunks import ChunkKey, JournaledChunk
from reshard.storage.location import Location
from reshard.storage.target import FileRange, look

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
