"""The files of torch's distributed checkpoint: which they are, whether a save finished, and what Megatron adds to them.

::

    folder/.metadata                  written last: without it the save did not finish
    folder/__0.metadata, …            in its place, where each rank saved by itself
    folder/__0_0.distcp, …            the items; names carry no meaning

Ranks that save together write ``.metadata`` last. Where each saved by itself, no file has the number of ranks. Then the save finished
if the metadata files list every element of each tensor, and the files that they name exist.

Megatron adds these, in its format ``torch_dist``::

    folder/metadata.json     {"sharded_backend": "torch_dist", "sharded_backend_version": 1, …}, written last of all
    folder/common.pt         the values that all ranks share, an archive of torch.save; newer versions have an item common_state/shard_0_1
    folder/.metadata, …      as of any distributed checkpoint

Names are flat: ``decoder.layers.mlp.linear_fc2.weight``. The name of a rank's value ends with its offset and the shape of all:
``rng_state/shard_0.1_1.2``. ``megatron/core/dist_checkpointing`` declares all of it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

from reshard.errors import (
    CorruptError,
    FormatError,
    IncompleteCheckpointError,
    LayoutError,
    MissingError,
    NotACheckpointError,
    ReshardError,
    shorten,
)
from reshard.formats.dcp.items import filled
from reshard.formats.dcp.metadata import (
    Entries,
    ItemPlace,
    MetadataFile,
    TensorEntry,
    ValueEntry,
    parse_metadata,
)
from reshard.formats.format import PlaceNames
from reshard.formats.limits import MAX_PICKLE_BYTES
from reshard.formats.marks import (
    DCP_ENDING,
    DCP_METADATA,
    MEGATRON_CONFIG,
    RANK_METADATA,
    is_of_dcp,
)
from reshard.formats.names import OF_RECORDS
from reshard.formats.safe_json import json_value, read_bytes
from reshard.formats.slices.parse import read_slices
from reshard.geometry.tiling import check_tiling
from reshard.storage.location import Location

FORMAT = "dcp"


def data_file(number: int) -> str:
    """The name of a file of items that is written, by its number from 0."""
    return f"__{number}_0{DCP_ENDING}"


def has_metadata(folder: Location) -> bool:
    """True if a folder has the metadata that a save of all ranks together writes last."""
    return DCP_METADATA in _names(folder)


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
    return all(not e.is_folder and (is_of_dcp(e.name) or e.name in OF_RECORDS) for e in entries)


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
    if DCP_METADATA in names:
        return [folder / DCP_METADATA]
    of_ranks = _of_ranks(names)
    if not of_ranks:
        raise IncompleteCheckpointError(
            f"{folder} has {DCP_ENDING} files but no {DCP_METADATA}, which torch writes last: the save did not finish, or the file was not copied "
            "(its name begins with a dot); copy it, or take another step"
        )
    for expected, rank in enumerate(of_ranks):
        if rank != expected:
            raise IncompleteCheckpointError(
                f"{folder} has the metadata of {len(of_ranks)} ranks, up to {max(of_ranks)}, but not __{expected}{DCP_METADATA}: that rank did not "
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


def _of_ranks(names: Sequence[str]) -> dict[int, str]:
    """The metadata files of ranks by number, ascending."""
    found = {int(match[1]): name for name in names if (match := RANK_METADATA.fullmatch(name))}
    return dict(sorted(found.items()))


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


MEGATRON = "torch_dist"

COMMON = "common.pt"

_BACKEND, _VERSION = "sharded_backend", "sharded_backend_version"

_MAX_CONFIG_BYTES = 1 << 16
"""Megatron's file takes some 120 bytes; a larger one is of another program."""

_BUFFER = re.compile(r"(?:.*\.)?distributed\.dp_group_idx_[0-9]+\..*", re.DOTALL)

_WAY = "which --dist-ckpt-optim-fully-reshardable saves as tensors"
_IN_BUFFERS = f"a buffer of Megatron's optimizer, {_WAY}"
_FLATTENED = f"a flattened tensor of Megatron's optimizer, {_WAY}"


def is_megatron(names: PlaceNames) -> bool:
    """True for the names of a folder of torch's distributed checkpoint with the file of a configuration that is Megatron's."""
    return COMMON in names.files or _BACKEND in _config(names.root)


def _check_config(root: Location) -> None:
    """Raises FormatError for a way to store tensors that is not read."""
    config = _config(root)
    found = config.get(_BACKEND, MEGATRON), config.get(_VERSION, 1)
    if found != (MEGATRON, 1):
        raise FormatError(
            f"{root / MEGATRON_CONFIG}: {_BACKEND} is {shorten(found[0])}, version {shorten(found[1])}; expected {MEGATRON!r}, version 1: load the "
            "checkpoint with Megatron, and save it with --ckpt-format torch_dist"
        )


def entries_of(root: Location, entries: Entries) -> Entries:
    """The entries with ``common.pt`` among them; errors for a way to store tensors that is not read."""
    _check_config(root)
    found: dict[str, TensorEntry | ValueEntry] = {}
    status = (root / COMMON).status()
    if status is not None and status.kind == "file":
        found[COMMON] = ValueEntry(COMMON, (ItemPlace(COMMON, 0, status.nbytes),))
    found |= readable(entries).entries
    return Entries(found, entries.paths)


def readable(entries: Entries) -> Entries:
    """The entries; a tensor that only Megatron can put together becomes an unread value, whatever lies beside it."""
    found: dict[str, TensorEntry | ValueEntry] = {}
    for name, entry in entries.entries.items():
        kind = _unread_kind(name, entries)
        found[name] = _unread(entry, kind) if kind and isinstance(entry, TensorEntry) else entry
    return Entries(found, entries.paths)


def _unread_kind(name: str, entries: Entries) -> str:
    if name in entries.flattened:
        return _FLATTENED
    return _IN_BUFFERS if _BUFFER.fullmatch(name) else ""


def _unread(entry: TensorEntry, kind: str) -> TensorEntry | ValueEntry:
    places = tuple(place for piece in filled(entry) for place in piece.places)
    return ValueEntry(entry.name, places, kind) if places else entry


def _config(root: Location) -> dict[str, Any]:
    """The content of ``metadata.json``; empty if it is missing, or of another program."""
    file = root / MEGATRON_CONFIG
    status = file.status()
    if status is None or status.kind != "file" or status.nbytes > _MAX_CONFIG_BYTES:
        return {}
    try:
        found = json_value(read_bytes(file, _MAX_CONFIG_BYTES), str(file))
    except (CorruptError, FormatError):
        return {}
    return found if isinstance(found, dict) else {}
