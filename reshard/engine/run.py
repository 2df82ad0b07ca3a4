"""Runs batches of tasks within the byte budget, adds up their results, stops at the first error.

One thread submits, adds up and records; tasks run on any ``concurrent.futures`` executor. A task
starts when its bytes are free, so that buffers never exceed the plan's ``max_memory``; each of several hosts has
that much. A run has one target or several: one task fills all units that share a read, and each target has its own
books.

In threads of the run's own process, tasks write the target's files themselves. Elsewhere they write files of their own
(``storage.local.staging``), sync them if the run's kernel cannot, and then report. The run takes over the files of a result
that counts; only the run writes below the root of a local target. In a bucket a file appears whole, and only if none is there.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import ExitStack, closing, contextmanager
from functools import partial

from msgspec import Struct
from msgspec.structs import replace

from reshard.engine.books import TargetRun
from reshard.engine.buffers import ArenaPool
from reshard.engine.error_context import about_target
from reshard.engine.executor import hosts_of, is_own, own_processes, run_tasks
from reshard.engine.movers.one_task import execute
from reshard.engine.output import TargetOutput, TaskOutput, Uploads
from reshard.engine.task import Result, Task
from reshard.formats.file_map import SharedFile
from reshard.planning.plans import TensorPlan
from reshard.planning.task_cost import RECORD_BYTES
from reshard.storage.host import host_name, this_kernel
from reshard.storage.local.staging import accept, begin_attempt, sync_attempt
from reshard.storage.local.syncing import Writeback
from reshard.storage.location import locate
from reshard.storage.targets import check_lease


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


class BatchResult(Struct, frozen=True):
    """The results of a batch.

    Attributes:
        results: of the units of each task.
        attempts: by target, the name of the folder with the written files; "" if tasks wrote the target's own files.
    """

    results: list[list[Result]]
    attempts: tuple[str, ...] = ()

    @property
    def read_bytes(self) -> int:
        """Encoded bytes that were read; the first unit of each task has the bytes of the whole task."""
        return sum(units[0].read_bytes for units in self.results)


class PackedBatch(Struct, frozen=True):
    """A batch with the shared-file layouts that its uploads need; it uploads these files in order.

    Attributes:
        shared: by target and by name.
    """

    tasks: tuple[Task, ...]
    shared: Mapping[int, Mapping[str, SharedFile]]


Batch = tuple[Task, ...] | PackedBatch


def tasks_of(batch: Batch) -> tuple[Task, ...]:
    """The tasks of a batch."""
    return batch.tasks if isinstance(batch, PackedBatch) else batch


def packed(tasks: tuple[Task, ...], outputs: Mapping[int, TargetOutput]) -> Batch:
    """The batch as it is sent; ``outputs`` are targets with files that other processes upload in order."""
    shared: dict[int, dict[str, SharedFile]] = {number: {} for number in outputs}
    for unit in (unit for task in tasks for unit in task.units if unit.target in outputs):
        files = shared[unit.target]
        for place in unit.places:
            if place.offset is not None and place.file not in files:
                files[place.file] = outputs[unit.target].files.shared_file(place.file)
    return PackedBatch(tasks, shared) if any(shared.values()) else tasks


class Work(Struct, frozen=True):
    """The function that carries out each batch of a run, with all that tasks have in common. It can be pickled.

    Attributes:
        outputs: by target.
        pool: lends used buffers; workers in other processes make buffers of their own.
    """

    outputs: tuple[TaskOutput, ...]
    pool: ArenaPool | None = None

    def __call__(self, batch: Batch) -> BatchResult:
        if not isinstance(batch, PackedBatch):
            return execute_batch(batch, self.outputs, self.pool)
        with _uploading(self.outputs, batch) as outputs:
            return execute_batch(batch.tasks, outputs, self.pool)

    def with_pool(self, pool: ArenaPool) -> Work:
        """The same work with the buffers of a worker."""
        return Work(self.outputs, pool)


@contextmanager
def _uploading(outputs: Sequence[TaskOutput], batch: PackedBatch) -> Iterator[list[TaskOutput]]:
    """The outputs with uploads of the batch's own; a file that is not complete at the end is not stored."""
    with ExitStack() as stack:
        found = list(outputs)
        for number, files in batch.shared.items():
            elsewhere = outputs[number].elsewhere
            lease = None if elsewhere is None else elsewhere.lease
            uploads = Uploads(locate(outputs[number].root), files.__getitem__)
            if lease is not None:
                uploads.check = partial(check_lease, *lease)
            stack.callback(uploads.abort)
            found[number] = replace(outputs[number], uploads=uploads)
        yield found


def execute_batch(
    tasks: Sequence[Task], outputs: Sequence[TaskOutput], pool: ArenaPool | None = None
) -> BatchResult:
    """Runs the tasks of a batch one after the other, in any process.

    Raises StorageError if this host does not share the folder of the target, or if the run is over.
    """
    used = {unit.target for task in tasks for unit in task.units}
    begun = {number: _begun(outputs[number]) for number in sorted(used)}
    written = [begun.get(number, output) for number, output in enumerate(outputs)]
    results = execute(tasks, written, pool)
    if host := _sync(begun.values()):
        results = [[replace(result, host=host) for result in of] for of in results]
    names = tuple(output.attempt for output in written)
    return BatchResult(results, names if any(names) else ())


def _begun(output: TaskOutput) -> TaskOutput:
    """The output of a task, in a folder of its own if the run requires it."""
    elsewhere = output.elsewhere
    if elsewhere is None:
        return output
    if elsewhere.lease is not None:
        check_lease(*elsewhere.lease)
    if not elsewhere.attempts:
        return output
    folder = f"{elsewhere.attempts}/{begin_attempt(elsewhere.attempts)}"
    return replace(output, root=folder, is_attempt=True)


def _sync(outputs: Iterable[TaskOutput]) -> str:
    """Syncs files that the run's own sync cannot reach; returns the host's name then, else ""."""
    host = ""
    for output in outputs:
        if output.elsewhere is not None and output.elsewhere.kernel != this_kernel():
            host = host_name()
            if output.is_attempt:
                sync_attempt(output.root)
    return host


def accept_files(
    output: TargetOutput, tensors: Sequence[TensorPlan], result: BatchResult, done: Sequence[Result]
) -> None:
    """Makes files of units the target's own if other processes wrote them."""
    if not result.attempts or not done or output.elsewhere is None:
        return
    name = result.attempts[done[0].target]
    files: dict[str, None] = {}
    heads: dict[str, tuple[bytes, int]] = {}
    for one in done:
        for chunk in one.chunks:
            for place in output.places(tensors[one.tensor].name, chunk.index):
                if place.offset is not None and place.file not in heads:
                    shared = output.files.shared_file(place.file)
                    heads[place.file] = (shared.head, shared.nbytes)
                files[place.file] = None
    accept(output.elsewhere.attempts, name, output.root, files, heads)
