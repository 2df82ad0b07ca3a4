"""Estimates the memory of opening an Orbax checkpoint, before it is opened.

The leaves are counted in ``_METADATA``, read piece by piece: each has one list of keys. Where there is none, they are counted
in the file ``checkpoint``, whose arrays are passed over.
"""

from __future__ import annotations

from reshard.errors import ReshardError
from reshard.formats.limits import MAX_JSON_BYTES
from reshard.formats.orbax.aggregate_file import count_values
from reshard.formats.orbax.container import TREE_METADATA
from reshard.storage.location import Location
from reshard.storage.recent_reads import read_part

LEAF_BYTES = 300
TENSOR_BYTES = 650
"""Objects of a leaf and of a tensor, and the text they were read from (measured)."""

OPENED_LEAF_BYTES = LEAF_BYTES + TENSOR_BYTES + 250
"""Memory of a tensor of one chunk, with names and index entries of common length; an overestimate, so that the
budget in an error message is enough."""

_KEYS = b'"key_metadata":'
_PIECE_BYTES = 1 << 20


def leaf_count(root: Location) -> int:
    """How many leaves the trees of a checkpoint have; 0 if it has none.

    Files that cannot be read or are too large are not counted: opening them raises the error.
    """
    try:
        folders = [root, *(root / entry.name for entry in root.entries() if entry.is_folder)]
        return sum(map(_count_tree, folders))
    except ReshardError:
        return 0


def _count_tree(folder: Location) -> int:
    metadata = folder / TREE_METADATA
    return _count(metadata) if metadata.exists() else count_values(folder)


def _count(file: Location) -> int:
    status = file.status()
    if status is None or status.kind != "file" or status.nbytes > MAX_JSON_BYTES:
        return 0
    found, done, rest = 0, 0, b""
    piece_bytes = max(_PIECE_BYTES, file.traits.range_bytes)
    while done < status.nbytes:
        # A file of one piece is read as it is when it is opened, so that it is requested once.
        piece = read_part(file, status, done, min(piece_bytes, status.nbytes - done))
        text = rest + piece
        found += text.count(_KEYS)
        rest = text[1 - len(_KEYS) :]
        done += len(piece) or status.nbytes
    return found
