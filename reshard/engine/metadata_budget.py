"""Opens checkpoints within the memory budget: too many leaves are refused before they are read."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from reshard.errors import ReshardError
from reshard.formats.base import Reader
from reshard.formats.registry import CheckpointPath, find_checkpoint
from reshard.planning.task_cost import LEAST_BUFFERS, bytes_beside

BYTES_PER_TENSOR = 2600
"""Memory that a conversion keeps for each target tensor (measured), besides the source's own metadata.

A plan takes less than 1,900 of it (``benchmarks.conversion.map_scale``, 300,000 targets of three sources); a run keeps results and sums, too.
The peaks of whole conversions of 4,096 and of 16,384 tensors of 256 bytes between safetensors files differ by 4,800 bytes a tensor
without a map and by up to 5,200 by one, of which 1,700 are the price of the source and of the header's text. So this is no upper bound:
the rest counts among the 128 MiB beside ``max_memory``, and so do further pieces of a target, which take some 2,300 each.
"""

BYTES_PER_DEVICE_ID = 20
"""Text of a device in a target's shardings, for each tensor on it."""

BYTES_PER_DIGEST = 400
"""Memory kept for each tensor that is read for its digest: sums, digests, a verdict."""


def open_to_convert(source: CheckpointPath, max_memory: int, targets: int = 1) -> Reader:
    """Opens a checkpoint to convert it to so many targets.

    Raises the errors of ``open_reader``, and MemoryBudgetError, before anything large is read, if
    its metadata and the targets' leave nothing of ``max_memory``.
    """
    found = find_checkpoint(source)
    _check_leaves([source], [found.price()], max_memory, BYTES_PER_TENSOR * targets)
    return found.open()


BYTES_PER_DIFFERENCE = 1800
"""Memory kept for each tensor that is compared element by element: sums, counts, a record (measured)."""


def check_leaves_to_read(
    max_memory: int, *sources: CheckpointPath, bytes_per_tensor: int = BYTES_PER_DIGEST
) -> None:
    """Raises MemoryBudgetError if checkpoints have too many leaves to be read whole."""
    prices = []
    for source in sources:
        with suppress(ReshardError):  # opening it raises the same error
            prices.append(find_checkpoint(source).price())
    _check_leaves(sources, prices, max_memory, bytes_per_tensor)


def left_to_read(
    max_memory: int, *readers: Reader, bytes_per_tensor: int = BYTES_PER_DIGEST
) -> int:
    """The bytes of ``max_memory`` that open checkpoints leave for reading all of them.

    Raises MemoryBudgetError, naming all of them, if that is too little.
    """
    tensors = sum(len(reader.tensors) for reader in readers)
    metadata = sum(reader.metadata_bytes for reader in readers) + bytes_per_tensor * tensors
    what = f"{tensors:,} tensors in {_names([reader.uri for reader in readers])}"
    return bytes_beside(metadata, max_memory, what, LEAST_BUFFERS)


def _check_leaves(
    sources: Sequence[CheckpointPath],
    prices: Sequence[tuple[int, int]],
    max_memory: int,
    bytes_per_tensor: int,
) -> None:
    leaves = sum(count for count, _ in prices)
    need = sum(nbytes for _, nbytes in prices) + leaves * bytes_per_tensor
    bytes_beside(
        need,
        max_memory,
        f"{leaves:,} leaves in {_names([source.path for source in sources])}",
        LEAST_BUFFERS,
    )


def _names(uris: Sequence[str]) -> str:
    return " and ".join(map(repr, uris))
