"""Limits: the memory budget and the number of workers, as every use case understands them."""

from __future__ import annotations

from concurrent.futures import Executor

from msgspec import Struct

from reshard.arguments import bytes_of, check_positive


class Limits(Struct, frozen=True):
    """What a run may use.

    Attributes:
        max_memory: bytes of all buffers together.
        workers: tasks at once.
        executor: None makes workers for the time of the run.
    """

    max_memory: int
    workers: int
    executor: Executor | None = None


WAITING_WORKERS = 16
WAITING_WORKER_BYTES = 32 << 20
"""Where sources or targets are in buckets, so many workers by default, if each has so much memory: most of them wait for answers."""


def limits_of(max_memory: int | str | None, workers: int | None, *places: object) -> Limits:
    """Budget and workers, the host's own where they are None; PlanError for what makes no sense.

    ``places`` are what is read and written, as users name it: buckets get more workers by default.
    """
    from reshard.storage.host import default_max_memory, default_workers
    from reshard.storage.location import is_in_bucket

    memory = bytes_of("max_memory", max_memory)
    memory = default_max_memory() if memory is None else memory
    if workers is None:
        workers = default_workers()
        if any(map(is_in_bucket, places)):
            workers = max(workers, min(WAITING_WORKERS, memory // WAITING_WORKER_BYTES))
    limits = Limits(memory, workers)
    check_limits(limits.max_memory, limits.workers)
    return limits


def check_limits(max_memory: int, workers: int) -> None:
    """Raises PlanError unless both are whole numbers of at least 1."""
    check_positive("max_memory", max_memory, "bytes, such as 512MiB")
    check_positive("workers", workers, "tasks at once, such as 2")
