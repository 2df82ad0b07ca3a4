"""Estimates the memory of opening an Orbax checkpoint, before it is opened.

The leaves are counted in ``_METADATA``, read piece by piece: each has one list of keys.
"""

from __future__ import annotations

from pathlib import Path

from reshard.formats.limits import MAX_JSON_BYTES
from reshard.formats.orbax.container import TREE_METADATA

LEAF_BYTES = 300
TENSOR_BYTES = 650
"""Objects of a leaf and of a tensor, and the text they were read from (measured)."""

OPENED_LEAF_BYTES = LEAF_BYTES + TENSOR_BYTES + 250
"""Memory of a tensor of one chunk, with names and index entries of common length; an overestimate, so that the
budget in an error message is enough."""

_KEYS = b'"key_metadata":'
_PIECE_BYTES = 1 << 20


def leaf_count(path: str) -> int:
    """How many leaves the trees of the checkpoint at ``path`` have; 0 if it has none.

    Files that cannot be read or are too large are not counted: opening them raises the error.
    """
    root = Path(path)
    try:
        folders = [root, *(p for p in root.iterdir() if p.is_dir())]
        return sum(_count(f / TREE_METADATA) for f in folders)
    except OSError:
        return 0


def _count(path: Path) -> int:
    if not path.is_file() or path.stat().st_size > MAX_JSON_BYTES:
        return 0
    found, rest = 0, b""
    with path.open("rb") as file:
        while piece := file.read(_PIECE_BYTES):
            text = rest + piece
            found += text.count(_KEYS)
            rest = text[1 - len(_KEYS) :]
    return found
