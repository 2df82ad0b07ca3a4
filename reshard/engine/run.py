"""Runs a plan: gives out tasks within the byte budget, adds up their results, stops at the first error.

One thread hands out, adds up and records; tasks run on any ``concurrent.futures`` executor. A task
starts when its bytes are free, so buffers never exceed the plan's ``max_memory``. A run has one
target or several: tasks that share a read come as one, and each target keeps its own books.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import closing
from functools import partial

from msgspec import Struct

from reshard.engine.accumulator import Accumulator, MoveResult
from reshard.engine.buffers import ArenaPool
from reshard.engine.error_context import about_target
from reshard.engine.executor import run_tasks
from reshard.engine.movers.stream import execute
from reshard.engine.open_target import OpenTarget
from reshard.engine.progress import Progress
from reshard.engine.task import Finished, Task
from reshard.engine.task_stream import Ends
from reshard.planning.cost import RECORD_BYTES
from reshard.planning.move import Plan
from reshard.storage.writeback import Writeback

__all__ = ["Books", "MoveResult", "run", "run_multi"]


class Books(Struct, frozen=True):
    """Where the tasks of one target write, and where what they did is added up.

    Attributes:
        record: called with what is done of every batch, after all its bytes were handed to the kernel
            and its chunks were closed.
    """

    output: OpenTarget
    ledger: Accumulator
    record: Callable[[Sequence[Finished]], None] | None = None


def run(
    plan: Plan,
    batches: Iterable[tuple[Task, ...]],
    ends: Ends,
    root: str,
    executor: Executor | None = None,
    progress: Callable[[Progress], None] | None = None,
) -> list[MoveResult]:
    """Carries out all batches of ``plan`` between ``ends``, below ``root``; one result per move, in order.

    Raises what ``run_multi`` raises, and VerificationError where what was written is not what was read.
    """
    ledger = Accumulator(plan, ends, root, progress)
    books = Books(OpenTarget(root, ends.writer.put), ledger)
    run_multi(batches, [books], plan.max_memory, plan.workers, executor)
    return ledger.results()


def run_multi(
    batches: Iterable[tuple[Task, ...]],
    books: Sequence[Books | None],
    max_memory: int,
    workers: int,
    executor: Executor | None = None,
) -> int:
    """Carries out all batches; what was read of the source, in encoded bytes, each read counted once.

    ``books`` is by target, None for one of which there is no task. Raises the first error of any task,
    after the running ones have ended.
    """
    # Buffers are lent within this process only; elsewhere every task makes its own.
    in_threads = executor is None or isinstance(executor, ThreadPoolExecutor)
    pool = ArenaPool(max_memory, workers) if in_threads else None
    outputs = tuple(OpenTarget("") if kept is None else kept.output for kept in books)
    work = partial(_finished, outputs=outputs, pool=pool)
    read_bytes = 0
    ended = run_tasks(batches, work, _batch_bytes, max_memory, workers, executor)
    with Writeback() as writeback, closing(ended):
        for reads in ended:
            read_bytes += sum(tasks[0].result.read_bytes for tasks in reads)
            for number, kept in enumerate(books):
                if kept is not None:
                    done = [t for tasks in reads for t in tasks if t.target == number]
                    _enter(kept, done, writeback)
    return read_bytes


def _enter(books: Books, finished: Sequence[Finished], writeback: Writeback) -> None:
    with about_target(books.output.target):
        for task in finished:
            for path, nbytes in books.ledger.add(task.result):
                writeback.begin(path, nbytes)
        if books.record is not None and finished:
            books.record(finished)


def _finished(
    tasks: Sequence[Task], outputs: Sequence[OpenTarget], pool: ArenaPool | None
) -> list[list[Finished]]:
    """Carries out a batch, in whatever process; what was done, by read."""
    results = iter(execute(tasks, outputs, pool))
    return [[Finished(t.unit_number, next(results), t.target) for t in task.all] for task in tasks]


def _batch_bytes(batch: tuple[Task, ...]) -> int:
    """Tasks of a batch follow one another, but what they know of their chunks is there from the start."""
    chunks = sum(len(t.sources) + sum(len(b.targets) for b in t.all) for t in batch[1:])
    return max(t.memory_bytes for t in batch) + RECORD_BYTES * chunks
