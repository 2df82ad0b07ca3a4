"""Carries out a batch of tasks, in this process or in another one on any host, and takes over its files.

In threads of the run's own process, tasks write the target's files themselves. Elsewhere they write files of their own
(``storage.local.attempts``), sync them if the run's kernel cannot, and then report. The run takes over the files of a result
that counts; only the run writes below the root of a local target. In a bucket a file appears whole, and only if none is there.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial

from msgspec import Struct
from msgspec.structs import replace

from reshard.engine.buffers import ArenaPool
from reshard.engine.movers.one_task import execute
from reshard.engine.output import TargetOutput, TaskOutput
from reshard.engine.task import Result, Task
from reshard.engine.write.uploads import Uploads
from reshard.formats.file_map import SharedFile
from reshard.planning.plans import TensorPlan
from reshard.storage.host import host_name, this_kernel
from reshard.storage.local.attempts import accept, begin_attempt, sync_attempt
from reshard.storage.location import locate
from reshard.storage.targets import check_lease


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
