"""Hand out tasks to an executor within a byte budget; the first error stops everything."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Executor, Future, ThreadPoolExecutor, wait
from contextlib import ExitStack
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")

QUEUED_PER_WORKER = 2
"""Tasks handed out ahead, so that no worker waits for the one thread that hands them out."""


def hand_out(
    tasks: Iterable[T],
    work: Callable[[T], R],
    need: Callable[[T], int],
    max_bytes: int,
    workers: int,
    executor: Executor | None = None,
) -> Iterator[R]:
    """``work(task)`` of every task, as they end; ``need`` bytes of each are free before it starts.

    A task that alone needs more than ``max_bytes`` runs when no other does. With ``executor`` None
    threads are made and ended here. At an error, or when the caller stops, tasks that have not
    begun are cancelled and those that have are waited for.
    """
    running: dict[Future[R], int] = {}
    with ExitStack() as stack:
        if executor is None:
            executor = stack.enter_context(ThreadPoolExecutor(workers, "reshard"))
        stack.callback(_stop, running)
        for task in tasks:
            nbytes = need(task)
            while running and not _may_start(running, nbytes, max_bytes, workers):
                yield from _ended(running)
            running[executor.submit(work, task)] = nbytes
        while running:
            yield from _ended(running)


def _may_start(running: dict[Future[R], int], nbytes: int, max_bytes: int, workers: int) -> bool:
    return (
        len(running) < workers * QUEUED_PER_WORKER and sum(running.values()) + nbytes <= max_bytes
    )


def _ended(running: dict[Future[R], int]) -> Iterator[R]:
    done, _ = wait(running, return_when=FIRST_COMPLETED)
    for future in done:
        del running[future]
    for future in done:
        yield future.result()


def _stop(running: dict[Future[R], int]) -> None:
    for future in running:
        future.cancel()
    wait(running)
