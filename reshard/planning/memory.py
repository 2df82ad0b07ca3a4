"""What of ``max_memory`` is left for buffers: metadata takes a part, and so do processes, where they pay."""

from __future__ import annotations

from collections.abc import Callable

from reshard.errors import MemoryBudgetError
from reshard.planning.multi_plan import MultiPlan

THREADS_PER_PROCESS = 4
"""Threads that one interpreter keeps busy. Of a task's processor time 9 to 27 % hold the interpreter's lock (measured,
see docs/explanation/performance.md), so that threads stop helping at 4 to 11."""

PAYING_BYTES = 4 << 30
"""Decoded bytes from which on processes are started. Starting some takes a quarter of a second (measured), in which
five cores move about half a GiB."""

PROCESS_BYTES = 64 << 20
"""Memory of a process besides buffers: the interpreter and libraries (37 to 50 MiB measured)."""

MEMORY_PARTS = 4
"""Processes take at most one of so many parts of ``max_memory``; the rest is for buffers."""


def plan_with_processes(make_plan: Callable[[int], MultiPlan], max_memory: int) -> MultiPlan:
    """The plan that ``make_plan`` gives for the best number of processes; for 0, threads of this process do it all.

    Processes do not lend each other buffers, so that each task must fit into its worker's share of the memory. If one
    does not, or if something is read more often because that memory is smaller, threads do it all.
    """
    in_threads = make_plan(0)
    count = _process_count(in_threads, max_memory)
    if not count:
        return in_threads
    try:
        in_processes = make_plan(count)
    except MemoryBudgetError:
        return in_threads
    reads_more = in_processes.decoded_bytes > in_threads.decoded_bytes
    return in_threads if reads_more or not _fits_shares(in_processes) else in_processes


def _process_count(plan: MultiPlan, max_memory: int) -> int:
    if plan.workers <= THREADS_PER_PROCESS or plan.decoded_bytes < PAYING_BYTES:
        return 0
    count = min(
        -(-plan.workers // THREADS_PER_PROCESS), max_memory // MEMORY_PARTS // PROCESS_BYTES
    )
    return count if count > 1 else 0


def _fits_shares(plan: MultiPlan) -> bool:
    share = plan.max_memory // plan.workers
    return all(fill.price.task_bytes <= share for each in plan.plans for fill in each.fills)


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
