"""The test for a distributed checkpoint whose save finished.

Ranks that save together write ``.metadata`` last. Where each saved by itself, no file has the number of ranks. Then the save finished
if the metadata files list every element of each tensor, and the files that they name exist.
"""

from __future__ import annotations

from collections.abc import Iterator

from reshard.errors import FormatError, LayoutError, MissingError
from reshard.formats.dcp.entries import Entries, ItemPlace, TensorEntry
from reshard.formats.dcp.files import has_metadata, rank_metadata, read_metadata_files
from reshard.formats.dcp.megatron import readable
from reshard.formats.dcp.metadata import parse_metadata
from reshard.geometry.tiling import check_tiling
from reshard.storage.location import Location

_MOST_READ_BYTES = 32 << 20
"""Of the metadata of all ranks, for each step that is listed: some 80,000 pieces, and some seconds. Where it is larger, only the ranks
are counted."""


def is_whole(folder: Location) -> bool:
    """True if a folder has all that a save writes; False for any other folder, and for damaged metadata."""
    if has_metadata(folder):
        return True
    ranks = rank_metadata(folder)
    if not ranks:
        return False
    try:
        nbytes = sum(found.nbytes for file in ranks if (found := file.status()) is not None)
        if nbytes > _MOST_READ_BYTES:
            return ranks[-1].name.startswith(f"__{len(ranks) - 1}.")
        return _is_all_there(folder, readable(parse_metadata(read_metadata_files(folder))))
    except (FormatError, MissingError):
        return False


def _is_all_there(folder: Location, entries: Entries) -> bool:
    names = {entry.name for entry in folder.entries()}
    if not all(place.file in names for place in _places(entries)):
        return False
    tensors = [one for one in entries.entries.values() if isinstance(one, TensorEntry)]
    try:
        for one in tensors:
            check_tiling(one.name, one.shape, [piece.box for piece in one.pieces])
    except LayoutError:
        return False
    return True


def _places(entries: Entries) -> Iterator[ItemPlace]:
    for entry in entries.entries.values():
        if isinstance(entry, TensorEntry):
            for piece in entry.pieces:
                yield from piece.places if piece.box.size else ()
        else:
            yield from entry.places
