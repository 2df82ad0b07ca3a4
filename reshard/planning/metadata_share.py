"""How much of ``max_memory`` the metadata takes; buffers get the rest."""

from __future__ import annotations

from reshard.errors import MemoryBudgetError

INCLUDED_BYTES = 16 << 20
"""Metadata that is not counted: interpreter and libraries take some 70 to 95 MiB of the 128 that a
process has beside ``max_memory`` (measured)."""

LEAST_BUFFERS = 12 << 20
"""Memory that tensors of common shapes need, for a refusal before any tensor is known."""


def counted_bytes(metadata_bytes: int) -> int:
    """The bytes of ``max_memory`` that ``metadata_bytes`` of metadata take."""
    return max(0, metadata_bytes - INCLUDED_BYTES)


def bytes_beside(metadata_bytes: int, max_memory: int, what: str, buffers: int) -> int:
    """The bytes of ``max_memory`` that are left for buffers.

    Raises MemoryBudgetError if fewer than ``buffers`` are left, the least that buffers need; ``what`` names the metadata,
    such as ``"100,000 leaves in 'ckpt'"``.
    """
    left = max_memory - counted_bytes(metadata_bytes)
    if counted_bytes(metadata_bytes) and left < buffers:
        mib = -(-(counted_bytes(metadata_bytes) + buffers) // (1 << 20))
        raise MemoryBudgetError(
            f"the metadata of {what} takes {metadata_bytes / (1 << 20):.4g} MiB in memory, and buffers at "
            f"least {buffers / (1 << 20):.4g} MiB, but {max_memory / (1 << 20):.4g} MiB are allowed; allow "
            f"max_memory of {mib}MiB",
            smallest_bytes=mib << 20,
        )
    return left
