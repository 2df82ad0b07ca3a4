"""Limits: the memory budget and the number of workers, as every use case understands them."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from msgspec import Struct

from reshard.arguments import bytes_of, check_positive
from reshard.errors import PlanError

if TYPE_CHECKING:
    from concurrent.futures import Executor  # loads logging, which takes 5 ms of a start


class Limits(Struct, frozen=True):
    """The resources that a run may use.

    Attributes:
        max_memory: bytes of all buffers together.
        workers: number of tasks that run at once.
        executor: runs the tasks; None starts threads for the run.
        max_growth: largest size of a target, as a multiple of its source's; None for no limit.
    """

    max_memory: int
    workers: int
    executor: Executor | None = None
    max_growth: float | None = None


def limits_of(
    max_memory: int | str | None,
    workers: int | None,
    *places: object,
    max_growth: float | None = None,
) -> Limits:
    """The budget and the workers; None takes a default from the host. PlanError for an impossible size or number.

    ``places`` are the paths and URLs that are read and written: with buckets the default is more workers.
    """
    from reshard.storage.calls import default_workers_for
    from reshard.storage.host import default_max_memory

    memory = bytes_of("max_memory", max_memory)
    memory = default_max_memory() if memory is None else memory
    if workers is None:
        workers = default_workers_for(memory, places)
    limits = Limits(memory, workers, max_growth=max_growth)
    check_limits(limits.max_memory, limits.workers)
    _check_growth(max_growth)
    return limits


def check_limits(max_memory: int, workers: int) -> None:
    """Raises PlanError unless both are whole numbers of at least 1."""
    check_positive("max_memory", max_memory, "bytes, such as 512MiB")
    check_positive("workers", workers, "tasks at once, such as 2")


def _check_growth(max_growth: object) -> None:
    is_number = isinstance(max_growth, int | float) and not isinstance(max_growth, bool)
    if max_growth is not None and not (is_number and 0 < float(max_growth) < math.inf):  # type: ignore[arg-type]  # is_number has checked it
        raise PlanError(
            f"max_growth is {max_growth!r}; expected a number above 0, such as 16, or None for no limit (max_growth)"
        )
