"""Run a plan: hand out tasks within the byte budget, add up what they did, stop at the first error.

One thread hands out, adds up and records; tasks run on any ``concurrent.futures`` executor. A task
starts when its bytes are free, so buffers never exceed the plan's ``max_memory``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import closing
from functools import partial

from reshard.engine.buffers import ArenaPool
from reshard.engine.copy import execute
from reshard.engine.hand_out import hand_out
from reshard.engine.ledger import Ledger, MoveResult
from reshard.engine.report import Progress
from reshard.engine.sinks import Put
from reshard.engine.task import Finished, Task
from reshard.engine.tasks import Ends
from reshard.planning.cost import RECORD_BYTES
from reshard.planning.move import Plan

__all__ = ["MoveResult", "run"]


def run(
    plan: Plan,
    batches: Iterable[tuple[Task, ...]],
    ends: Ends,
    root: str,
    executor: Executor | None = None,
    progress: Callable[[Progress], None] | None = None,
    ledger: Ledger | None = None,
    record: Callable[[Sequence[Finished]], None] | None = None,
) -> list[MoveResult]:
    """Carries out all batches of ``plan`` between ``ends``, below ``root``; one result per move, in order.

    Args:
        ledger: what was done before; None where nothing was.
        record: called with every batch that is done, after all its bytes were handed to the kernel
            and its chunks were closed.

    Raises the first error of any task, after the running ones have ended; VerificationError where
    what was written is not what was read.
    """
    ledger = ledger or Ledger(plan, ends, root, progress)
    # Buffers are lent within this process only; elsewhere every task makes its own.
    in_threads = executor is None or isinstance(executor, ThreadPoolExecutor)
    pool = ArenaPool(plan.max_memory) if in_threads else None
    work = partial(_finished, root=root, pool=pool, put=ends.writer.put)
    ended = hand_out(batches, work, _batch_bytes, plan.max_memory, plan.workers, executor)
    with closing(ended):
        for finished in ended:
            for task in finished:
                ledger.add(task.result)
            if record is not None:
                record(finished)
    return ledger.results()


def _finished(tasks: Sequence[Task], root: str, pool: ArenaPool | None, put: Put) -> list[Finished]:
    """Carries out a batch, in whatever process."""
    results = execute(tasks, root, pool, put)
    return [Finished(t.unit_number, r) for t, r in zip(tasks, results, strict=True)]


def _batch_bytes(batch: tuple[Task, ...]) -> int:
    """Tasks of a batch follow one another, but what they know of their chunks is there from the start."""
    chunks = sum(len(t.sources) + len(t.targets) for t in batch[1:])
    return max(t.memory_bytes for t in batch) + RECORD_BYTES * chunks
