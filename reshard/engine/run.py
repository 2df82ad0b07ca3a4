"""Runs batches of tasks within the byte budget, adds up their results, stops at the first error.

One thread submits, adds up and records; tasks run on any ``concurrent.futures`` executor. A task
starts when its bytes are free, so that buffers never exceed the plan's ``max_memory``; each of several hosts has
that much. A run has one target or several: one task fills all units that share a read, and each target has its own
books.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from concurrent.futures import Executor
from contextlib import ExitStack, closing

from msgspec.structs import replace

from reshard.engine.batch import Batch, BatchResult, Work, accept_files, packed, tasks_of
from reshard.engine.books import TargetRun
from reshard.engine.buffers import ArenaPool
from reshard.engine.error_context import about_target
from reshard.engine.executor import hosts_of, is_own, run_tasks
from reshard.engine.output import TargetOutput, TaskOutput
from reshard.engine.processes import own_processes
from reshard.engine.task import Task
from reshard.planning.task_cost import RECORD_BYTES
from reshard.storage.local.writeback import Writeback


def run_batches(
    batches: Iterable[tuple[Task, ...]],
    targets: Sequence[TargetRun | None],
    max_memory: int,
    workers: int,
    executor: Executor | None = None,
    processes: int = 0,
) -> int:
    """Carries out all batches; returns the encoded bytes read from the source, each read counted once.

    ``targets`` has None for a target that needs no task. Without an ``executor`` this makes threads, in ``processes``
    of their own if those are not 0; an executor on several hosts must be open (``executor.opened``). Raises the first error of any
    task, after the running ones have ended.
    """
    outputs = _outputs(targets)
    running = [(number, one) for number, one in enumerate(targets) if one is not None]
    sent: Iterable[Batch] = batches
    if uploads := _uploads_elsewhere(targets, executor):
        sent = (packed(batch, uploads) for batch in batches)
        outputs = tuple(replace(output, uploads=None) for output in outputs)
    read_bytes = 0
    with ExitStack() as stack:
        hosts = hosts_of(executor)
        executor = executor or stack.enter_context(own_processes(processes, workers))
        pool = ArenaPool(max_memory, workers) if is_own(executor) else None
        ended = run_tasks(
            sent,
            Work(outputs, pool),
            _batch_bytes,
            max_memory * hosts,
            workers * hosts,
            executor,
        )
        writeback = stack.enter_context(Writeback())
        stack.enter_context(closing(ended))
        for result in ended:
            read_bytes += result.read_bytes
            for number, target in running:
                _add_up(target, result, number, writeback)
    return read_bytes


def _outputs(targets: Sequence[TargetRun | None]) -> tuple[TaskOutput, ...]:
    return tuple(TaskOutput("") if one is None else one.output.of_tasks for one in targets)


def _uploads_elsewhere(
    targets: Sequence[TargetRun | None], executor: Executor | None
) -> dict[int, TargetOutput]:
    """The targets with files that workers in other processes upload in order."""
    if is_own(executor):
        return {}
    every = {number: one.output for number, one in enumerate(targets) if one is not None}
    return {number: output for number, output in every.items() if output.uploads is not None}


def _add_up(target: TargetRun, result: BatchResult, number: int, writeback: Writeback) -> None:
    done = [one for units in result.results for one in units if one.target == number]
    done = [one for one in done if target.is_first(one)]
    with about_target(target.output.name):
        accept_files(target.output, target.books.tensors, result, done)
        for one in done:
            complete = target.books.add(one)
            for stored in () if one.host else complete:  # another host has synced it
                writeback.begin(stored.path, stored.length, stored.offset)
        if target.record is not None and done:
            target.record(done)


def _batch_bytes(batch: Batch) -> int:
    """Memory of a batch: its tasks follow one another, but their records of chunks exist from the start."""
    tasks = tasks_of(batch)
    chunks = sum(map(_chunks, tasks[1:]))
    return max(t.memory_bytes for t in tasks) + RECORD_BYTES * chunks


def _chunks(task: Task) -> int:
    return sum(len(r.chunks) for r in task.reads) + sum(len(u.chunks) for u in task.units)
