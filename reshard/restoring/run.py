"""Runs a restore: reads chunks on threads within the byte budget, and places each full buffer.

The budget counts the memory beside the result: decoders, band buffers, and buffers that are copied to
devices (``Output.is_staged``). A group with staged buffers is one job, which frees them when it ends. The
chunks of any other group are read in parallel, since its buffers become the result.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from functools import partial

from reshard.engine.buffers import Arena, ArenaPool, lent
from reshard.engine.executor import run_tasks
from reshard.engine.limits import Limits
from reshard.engine.progress import Progress
from reshard.formats.base import Reader
from reshard.restoring.read_chunk import ChunkResult, read_chunk
from reshard.restoring.schedule import Job, ReadStep, jobs
from reshard.restoring.tensor_read import TensorRead, check_memory
from reshard.restoring.tensor_state import Restored, TensorState

Done = list[tuple[ReadStep, ChunkResult | None]]


def run(
    reads: Sequence[TensorRead],
    reader: Reader,
    limits: Limits,
    verify: bool,
    progress: Callable[[Progress], None] | None = None,
) -> list[Restored]:
    """Reads every tensor; returns one result each, in order.

    Raises MemoryBudgetError before anything is read; the first error of any chunk, after running jobs
    have ended; CorruptError if the digest of a tensor differs from the recorded one.
    """
    check_memory(reads, limits.max_memory)
    states = [TensorState.of(read, limits, verify) for read in reads]
    total = sum(_needed_elements_bytes(read) for read in reads)
    moved_bytes = 0
    ended = run_tasks(
        jobs(states, reader, limits.max_memory),
        partial(_run_job, pool=ArenaPool(limits.max_memory, limits.workers)),
        lambda job: job.memory_bytes,
        limits.max_memory,
        limits.workers,
    )
    with closing(ended):
        for number, done in enumerate(ended, 1):
            moved_bytes += sum(step.nbytes for step, _ in done)
            name = _count(done)
            if progress is not None:
                progress(Progress(moved_bytes, total, number, number, name, "restoring"))
    return [state.restored() for state in states]


def _needed_elements_bytes(read: TensorRead) -> int:
    return sum(region.size for region in read.output.regions) * read.stored.spec.itemsize


def _count(done: Done) -> str:
    """Adds the results of a job to their tensors; returns the name of the last."""
    for step, result in done:
        if step.read is not None and result is not None:
            step.opened.state.add(step.read.chunk.index, result)
    return done[-1][0].opened.state.read.name


def _run_job(job: Job, pool: ArenaPool) -> Done:
    with lent(pool, job.arena_bytes, job.memory_bytes) as arena:
        return [(step, _run_step(step, arena)) for step in job.steps]


def _run_step(step: ReadStep, arena: Arena) -> ChunkResult | None:
    arena.reset()
    result = None
    if step.read is not None:
        result = read_chunk(step.read, step.opened.state.memory.buffers(arena))
    step.opened.end_chunk()
    return result
