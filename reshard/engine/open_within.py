"""Opening a checkpoint within a budget: one with too many leaves is refused before it is read."""

from __future__ import annotations

from pathlib import Path

from reshard.formats.base import Reader
from reshard.formats.detect import local_path, open_reader
from reshard.formats.orbax.metadata_price import LEAF_BYTES, TENSOR_BYTES, leaf_count
from reshard.planning.metadata_share import LEAST_BUFFERS, bytes_beside

BYTES_PER_MOVE = 2600
"""What a conversion keeps in memory for each tensor (measured), besides the source's own metadata."""


def open_to_convert(uri: str, max_memory: int) -> Reader:
    """Opens a checkpoint of which a target is to be made.

    Raises what ``open_reader`` raises, and MemoryBudgetError, before anything large is read, where
    its metadata and the target's leave nothing of ``max_memory``.
    """
    return _open(uri, max_memory, BYTES_PER_MOVE)


def open_to_read(uri: str, max_memory: int) -> Reader:
    """As ``open_to_convert``, for a checkpoint that is read only."""
    return _open(uri, max_memory, 0)


def _open(uri: str, max_memory: int, bytes_per_tensor: int) -> Reader:
    leaves = leaf_count(Path(local_path(uri)))
    need = leaves * (LEAF_BYTES + TENSOR_BYTES + bytes_per_tensor)
    bytes_beside(need, max_memory, f"{leaves:,} leaves in {uri!r}", LEAST_BUFFERS)
    return open_reader(uri)


def left_to_read(max_memory: int, *readers: Reader) -> int:
    """What open checkpoints leave of ``max_memory`` for reading their tensors.

    Raises MemoryBudgetError, naming the first, where that is nothing.
    """
    metadata = sum(reader.metadata_bytes for reader in readers)
    tensors = sum(len(reader.tensors) for reader in readers)
    what = f"{tensors:,} tensors in {' and '.join(repr(r.uri) for r in readers)}"
    return bytes_beside(metadata, max_memory, what, 1)
