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


def limits_of(max_memory: int | str | None, workers: int | None) -> Limits:
    """Budget and workers, the host's own where they are None; PlanError for what makes no sense."""
    from reshard.storage.host import default_max_memory, default_workers

    memory = bytes_of("max_memory", max_memory)
    limits = Limits(
        default_max_memory() if memory is None else memory,
        default_workers() if workers is None else workers,
    )
    check_limits(limits.max_memory, limits.workers)
    return limits


def check_limits(max_memory: int, workers: int) -> None:
    """Raises PlanError unless both are whole numbers of at least 1."""
    check_positive("max_memory", max_memory, "bytes, such as 512MiB")
    check_positive("workers", workers, "tasks at once, such as 2")
