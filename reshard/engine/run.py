"""Runs batches of tasks within the byte budget, adds up their results, stops at the first error.

One thread submits, adds up and records; tasks run in threads or own processes of this host. A task starts when its bytes are free, so that
buffers never exceed the plan's ``max_memory``. A run has one target or several: one task fills all units that share a read, and each target has
its own books.

Tasks write the target's files themselves. In a bucket a file appears whole.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from concurrent.futures import Executor
from contextlib import ExitStack, closing
from functools import partial

from reshard.engine.books import TargetRun
from reshard.engine.buffers import ArenaPool
from reshard.engine.error_context import about_target
from reshard.engine.executor import Processes, own_processes, run_tasks
from reshard.engine.movers.one_task import execute
from reshard.engine.output import TaskOutput
from reshard.engine.task import Result, Task
from reshard.planning.task_cost import RECORD_BYTES
from reshard.storage.local.syncing import Writeback

Batch = tuple[Task, ...]
"""Tasks that one worker does one after the other."""


def run_batches(
    batches: Iterable[Batch],
    targets: Sequence[TargetRun | None],
    max_memory: int,
    workers: int,
    executor: Executor | None = None,
    processes: int = 0,
) -> int:
    """Carries out all batches; returns the encoded bytes read from the source, each read counted once.

    ``targets`` has None for a target that needs no task. Without an ``executor`` this makes threads, in ``processes``
    of their own if those are not 0. Raises the first error of any task, after the running ones have ended.
    """
    outputs = [TaskOutput("") if one is None else one.output.of_tasks for one in targets]
    running = [(number, one) for number, one in enumerate(targets) if one is not None]
    read_bytes = 0
    with ExitStack() as stack:
        executor = executor or stack.enter_context(own_processes(processes, workers))
        # Workers in processes of their own make buffers of their own.
        pool = None if isinstance(executor, Processes) else ArenaPool(max_memory, workers)
        work = partial(execute, outputs=outputs, pool=pool)
        ended = run_tasks(batches, work, _batch_bytes, max_memory, workers, executor)
        writeback = stack.enter_context(Writeback())
        stack.enter_context(closing(ended))
        for results in ended:
            # The first unit of each task has the bytes of the whole task.
            read_bytes += sum(units[0].read_bytes for units in results)
            for number, target in running:
                _add_up(target, results, number, writeback)
    return read_bytes


def _add_up(
    target: TargetRun, results: Sequence[Sequence[Result]], number: int, writeback: Writeback
) -> None:
    done = [one for units in results for one in units if one.target == number]
    done = [one for one in done if target.is_first(one)]
    with about_target(target.output.name):
        for one in done:
            for stored in target.books.add(one):
                writeback.begin(stored.path, stored.length, stored.offset)
        if target.record is not None and done:
            target.record(done)


def _batch_bytes(batch: Batch) -> int:
    """Memory of a batch: its tasks follow one another, but their records of chunks exist from the start."""
    chunks = sum(map(_chunks, batch[1:]))
    return max(t.memory_bytes for t in batch) + RECORD_BYTES * chunks


def _chunks(task: Task) -> int:
    return sum(len(r.chunks) for r in task.reads) + sum(len(u.chunks) for u in task.units)
