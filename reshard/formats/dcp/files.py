"""The files of torch's distributed checkpoint in a folder.

::

    folder/.metadata                  written last: without it the save did not finish
    folder/__0.metadata, …            in its place, where each rank saved by itself
    folder/__0_0.distcp, …            the items; names carry no meaning

Megatron's checkpoints have these files too, and more: ``megatron.py`` knows them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from reshard.errors import (
    FormatError,
    IncompleteCheckpointError,
    NotACheckpointError,
    ReshardError,
)
from reshard.formats.dcp.metadata import MetadataFile
from reshard.formats.format import PlaceNames
from reshard.formats.json.safe_json import read_bytes
from reshard.formats.limits import MAX_PICKLE_BYTES
from reshard.formats.record_names import OF_RECORDS
from reshard.formats.slices.parse import read_slices
from reshard.storage.location import Location

FORMAT = "dcp"
METADATA = ".metadata"
ENDING = ".distcp"

_OF_RANK = re.compile(r"__([0-9]{1,9})\.metadata")


def data_file(number: int) -> str:
    """The name of a file of items that is written, by its number from 0."""
    return f"__{number}_0{ENDING}"


def is_dcp(names: PlaceNames) -> bool:
    """True for the names of such a folder, finished or not, and of one of its files."""
    return any(map(_is_mark, names.files)) or (names.kind == "file" and _is_mark(names.name))


def has_metadata(folder: Location) -> bool:
    """True if a folder has the metadata that a save of all ranks together writes last."""
    return METADATA in _names(folder)


def rank_metadata(folder: Location) -> list[Location]:
    """The metadata files of ranks that saved by themselves, in order; none for any other folder."""
    return [folder / name for name in _of_ranks(_names(folder)).values()]


def is_replaceable(folder: Location) -> bool:
    """True if this project wrote a folder, and nothing else is in it."""
    try:
        record = read_slices(folder)
    except ReshardError:
        return False
    if record is None or not record.conversion:
        return False
    entries = folder.entries()
    return all(not e.is_folder and (_is_mark(e.name) or e.name in OF_RECORDS) for e in entries)


def metadata_files(folder: Location) -> list[Location]:
    """The metadata files of a folder, those of ranks in order.

    Raises NotACheckpointError for a file instead of its folder, IncompleteCheckpointError if the save did not finish or the file of a
    rank is missing.
    """
    if not folder.is_folder():
        raise NotACheckpointError(
            f"{folder} is one file of a distributed checkpoint of torch; name its folder, {folder.parent}"
        )
    names = _names(folder)
    if METADATA in names:
        return [folder / METADATA]
    of_ranks = _of_ranks(names)
    if not of_ranks:
        raise IncompleteCheckpointError(
            f"{folder} has {ENDING} files but no {METADATA}, which torch writes last: the save did not finish, or the file was not copied "
            "(its name begins with a dot); copy it, or take another step"
        )
    for expected, rank in enumerate(of_ranks):
        if rank != expected:
            raise IncompleteCheckpointError(
                f"{folder} has the metadata of {len(of_ranks)} ranks, up to {max(of_ranks)}, but not __{expected}{METADATA}: that rank did not "
                "finish its save, or the file was not copied"
            )
    return [folder / name for name in of_ranks.values()]


def read_metadata_files(folder: Location) -> list[MetadataFile]:
    """The metadata files with their bytes. Raises as ``metadata_files``; FormatError where they are too large."""
    files = metadata_files(folder)
    sizes = [found.nbytes for file in files if (found := file.status()) is not None]
    if sum(sizes) > MAX_PICKLE_BYTES:
        raise FormatError(
            f"{folder} has {sum(sizes):,} bytes of metadata; at most {MAX_PICKLE_BYTES:,} are read"
        )
    return [MetadataFile(read_bytes(file, MAX_PICKLE_BYTES), str(file)) for file in files]


def _names(folder: Location) -> list[str]:
    return [entry.name for entry in folder.entries() if not entry.is_folder]


def _is_mark(name: str) -> bool:
    return name == METADATA or name.endswith(ENDING) or _OF_RANK.fullmatch(name) is not None


def _of_ranks(names: Sequence[str]) -> dict[int, str]:
    """The metadata files of ranks by number, ascending."""
    found = {int(match[1]): name for name in names if (match := _OF_RANK.fullmatch(name))}
    return dict(sorted(found.items()))
