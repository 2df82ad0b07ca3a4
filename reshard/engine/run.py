"""Runs batches of tasks within the byte budget, adds up their results, stops at the first error.

One thread hands out, adds up and records; tasks run on any ``concurrent.futures`` executor. A task
starts when its bytes are free, so buffers never exceed the plan's ``max_memory``. A run has one
target or several: tasks that share a read are one task, and each target has its own accumulator.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import ExitStack, closing
from functools import partial

from reshard.engine.buffers import ArenaPool
from reshard.engine.error_context import about_target
from reshard.engine.executor import run_tasks
from reshard.engine.movers.stream import execute
from reshard.engine.output import TaskOutput
from reshard.engine.processes import Processes, own_processes
from reshard.engine.target_run import TargetRun
from reshard.engine.task import Finished, Task
from reshard.planning.cost import RECORD_BYTES
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
    of their own if those are not 0. Raises the first error of any task, after the running ones have ended.
    """
    outputs = tuple(TaskOutput("") if one is None else one.output.of_tasks for one in targets)
    read_bytes = 0
    with ExitStack() as stack:
        executor = executor or stack.enter_context(own_processes(processes, workers))
        # Executors of others have workers that we do not know: every task makes its own buffers there.
        keeps_buffers = executor is None or isinstance(executor, ThreadPoolExecutor | Processes)
        pool = ArenaPool(max_memory, workers) if keeps_buffers else None
        work = partial(_finished, outputs=outputs, pool=pool)
        ended = run_tasks(batches, work, _batch_bytes, max_memory, workers, executor)
        writeback = stack.enter_context(Writeback())
        stack.enter_context(closing(ended))
        for reads in ended:
            read_bytes += sum(tasks[0].result.read_bytes for tasks in reads)
            for number, target in enumerate(targets):
                if target is not None:
                    done = [t for tasks in reads for t in tasks if t.target == number]
                    _add_up(target, done, writeback)
    return read_bytes


def _add_up(target: TargetRun, finished: Sequence[Finished], writeback: Writeback) -> None:
    with about_target(target.output.name):
        for task in finished:
            for stored in target.accumulator.add(task.result):
                writeback.begin(stored.path, stored.nbytes, stored.offset)
        if target.record is not None and finished:
            target.record(finished)


def _finished(
    tasks: Sequence[Task], outputs: Sequence[TaskOutput], pool: ArenaPool | None
) -> list[list[Finished]]:
    """Runs a batch, in any process; returns what was done, by read."""
    results = iter(execute(tasks, outputs, pool))
    return [[Finished(t.unit_number, next(results), t.target) for t in task.all] for task in tasks]


def _batch_bytes(batch: tuple[Task, ...]) -> int:
    """Tasks of a batch follow one another, but what they know of their chunks is there from the start."""
    chunks = sum(len(t.sources) + sum(len(b.targets) for b in t.all) for t in batch[1:])
    return max(t.memory_bytes for t in batch) + RECORD_BYTES * chunks
