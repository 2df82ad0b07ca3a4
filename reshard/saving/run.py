"""The steps of a save: plan, stage, write, publish; in one process or in a group.

Every step is an exchange between the processes (``Group.exchange``), so an error in one of them ends the save in all.
Only process 0 has the transaction: it begins and commits it. The others write their chunks below its root, in a bucket or on
a file system that all share.

Writes this process's chunks on several threads, within the memory budget, and adds up the digests.

A save proves that its objects are in the bucket before it is published: a CheckpointManager or a lifecycle rule may delete
objects meanwhile, and readers would take the holes for zeros. Each process adds up the names and versions of the chunks that it
put, and process 0 compares the sum with one listing. Process 0 puts all metadata, and compares that one by one.
"""

from __future__ import annotations

import json
import os
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial, reduce
from hashlib import blake2b
from operator import xor
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from reshard.checksums.sums import digest_text, sum_of_box
from reshard.engine.error_context import about_tensor
from reshard.engine.output import TaskOutput
from reshard.engine.write.chunk_files import write_chunk
from reshard.errors import StorageError, TargetExistsError
from reshard.formats.codecs import encode_chunk
from reshard.formats.file_map import finish_files, prepare_files
from reshard.formats.names import StepName
from reshard.formats.registry import has_checkpoint, refuse_other_content
from reshard.formats.steps import refuse_several_words, run_steps, steps_of_words
from reshard.geometry.grid import Box
from reshard.geometry.sizes import format_bytes
from reshard.saving.options import GivenLayouts, SaveOptions
from reshard.saving.plan import (
    OwnChunk,
    SavePlan,
    host_chunk,
    keep_data,
    parts,
    plan_save,
    total_bytes,
)
from reshard.saving.processes import ProcessGroup, check_same, local_placements, own_copies
from reshard.saving.tree import LiveLeaf, live_leaves
from reshard.storage.local.syncing import Writeback
from reshard.storage.location import Location, locate
from reshard.storage.target import first_changed, recording_versions
from reshard.storage.targets import check_new, lock_target, make_durable, root_text
from reshard.storage.transaction import Transaction


class _Budget:
    """A bound on the bytes in flight."""

    def __init__(self, max_bytes: int) -> None:
        self._free = max_bytes
        self._changed = threading.Condition()

    @contextmanager
    def taken(self, nbytes: int) -> Iterator[None]:
        """Waits until ``nbytes`` are free, and takes them for the block."""
        with self._changed:
            self._changed.wait_for(lambda: nbytes <= self._free)
            self._free -= nbytes
        try:
            yield
        finally:
            with self._changed:
                self._free += nbytes
                self._changed.notify_all()


class ChunkWriter:
    """Writes chunks below ``root`` and adds up their digests; safe from any thread.

    Attributes:
        put_sum: exclusive or of ``put_mark`` over the objects that it put into a bucket.
    """

    def __init__(self, plan: SavePlan, root: str, max_memory: int, writeback: Writeback) -> None:
        self._plan = plan
        self._output = TaskOutput(root)
        self._budget = _Budget(max_memory)
        self._writeback = writeback
        self._sums: dict[str, int] = defaultdict(int)
        self.put_sum = 0
        self._lock = threading.Lock()

    @property
    def sums(self) -> Mapping[str, int]:
        """The contribution of the written chunks to each tensor's CRC-64/NVME (its linear part)."""
        return self._sums

    def write(self, own: OwnChunk) -> None:
        """Encodes and stores one chunk; StorageError if the store refuses."""
        tensor = self._plan.tensors[own.name]
        target = self._plan.target.tensors[own.name]
        with about_tensor(own.name), self._budget.taken(self._plan.need_bytes[own.name]):
            chunk = host_chunk(tensor, target.spec, own.box)
            inner = chunk[Box.full(own.box.shape).slices]
            added = sum_of_box(inner, own.box, tensor.shape)
            put = self._store(own, encode_chunk(target.encoding, chunk.reshape(-1).view("u1").data))
        with self._lock:
            self._sums[own.name] ^= added
            self.put_sum ^= put

    def _store(self, own: OwnChunk, encoded: tuple[bytes | memoryview, ...]) -> int:
        """Stores an encoded chunk; returns its addition to ``put_sum``."""
        files = self._plan.files
        places, put = files.places(own.name, own.index), 0
        if files.database is not None:
            files.database.put(own.name, own.index, b"".join(encoded))
        for place in places:
            if version := write_chunk(self._output, place, encoded):
                put ^= put_mark(place.file, version)
            else:
                nbytes = sum(map(len, encoded))
                self._writeback.begin(f"{self._output.root}/{place.file}", nbytes, place.start)
        return put


def for_each(chunks: tuple[OwnChunk, ...], work: Callable[[OwnChunk], None], workers: int) -> None:
    """Calls ``work`` for every chunk, on ``workers`` threads; stops at the first error, and raises it.

    It has its own threads: an executor takes no work while the interpreter exits, but a save in the background must
    still finish.
    """
    threads = _Threads(chunks, work)
    started: list[threading.Thread] = []
    try:
        _start(threads, min(workers, len(chunks)), started)
        for thread in started:
            thread.join()
    except BaseException:
        threads.stop()
        for thread in started:
            thread.join()
        raise
    if threads.error is not None:
        raise threads.error


def _start(threads: _Threads, count: int, started: list[threading.Thread]) -> None:
    """Starts up to ``count`` threads; if the system allows none, the caller does the work."""
    for number in range(count):
        thread = threading.Thread(target=threads.run, name=f"reshard.save-{number}")
        try:
            thread.start()
        except RuntimeError:
            break
        started.append(thread)
    if not started:
        threads.run()


class _Threads:
    """Threads that take one chunk after another until none is left, or one fails."""

    def __init__(self, chunks: tuple[OwnChunk, ...], work: Callable[[OwnChunk], None]) -> None:
        self._left = iter(chunks)
        self._work = work
        self._lock = threading.Lock()
        self.error: BaseException | None = None

    def run(self) -> None:
        """The loop of one thread."""
        while (own := self._next()) is not None:
            try:
                self._work(own)
            except MemoryError:
                self._fail(StorageError(f"no memory for a chunk of {own.name!r}; lower max_memory"))
            except BaseException as error:  # noqa: BLE001  raised again in the waiting thread
                self._fail(error)

    def stop(self) -> None:
        """Makes the threads stop after their current chunks."""
        with self._lock:
            self._left = iter(())

    def _next(self) -> OwnChunk | None:
        with self._lock:
            return next(self._left, None)

    def _fail(self, error: BaseException) -> None:
        with self._lock:
            self.error = self.error or error
            self._left = iter(())


def put_mark(file: str, version: str) -> int:
    """An object's addition to the sum (by exclusive or): a hash of its path below the root and its version."""
    return int.from_bytes(blake2b(f"{file}\0{version}".encode(), digest_size=8).digest(), "big")


def check_saved(
    plan: SavePlan, root: Location, put_sums: Iterable[int], metadata: Mapping[str, str]
) -> None:
    """Raises StorageError unless ``root`` has everything as it was put; a missing chunk is named with its tensor.

    Args:
        put_sums: of every process that put chunks.
        metadata: the version of each other object, by its path.
    """
    listed, found_sum = root.view(), 0
    if (changed := first_changed(listed, metadata)) is not None:
        raise StorageError(
            f"{changed}: it was put, but is not there now, or is another object; {_REMEDY}"
        )
    for name, tensor in plan.target.tensors.items():
        for index in tensor.spec.storage.indices():
            for place in plan.files.places(name, index):
                found = (listed / place.file).status()
                if found is None or found.kind != "file":
                    raise StorageError(
                        f"tensor {name!r}, chunk {list(index)}: it was put below {root}, but is not there now; {_REMEDY}"
                    )
                found_sum ^= put_mark(place.file, found.version)
    if found_sum != reduce(xor, put_sums, 0):
        raise StorageError(f"objects below {root} are not those that were put; {_REMEDY}")


_REMEDY = (
    "nothing was published; make sure that nothing else writes or removes there, and save again"
)


class OpenSave(Struct):
    """A save that is planned and begun.

    Attributes:
        place: the checkpoint that will appear.
        transaction: of process 0, which alone has it.
        closing: gives the target back.
        is_written: True once every process has written its chunks.
        put: the version of each metadata file that process 0 has put into a bucket, by its path.
    """

    group: ProcessGroup
    plan: SavePlan
    options: SaveOptions
    place: Location
    transaction: Transaction | None
    closing: ExitStack
    is_written: bool = False
    put: dict[str, str] = {}

    @property
    def settles(self) -> bool:
        """True if this process waits for the others after an error of its own, since they write to the target's own name."""
        return self.transaction is not None and self.transaction.root == self.place


def plan_together(
    group: ProcessGroup,
    tree: Any,
    given: GivenLayouts,
    options: SaveOptions,
    target: str,
    step: int | None,
) -> SavePlan:
    """This process's plan, which must equal that of every other process; nothing is written."""
    plans: list[SavePlan] = []
    leaves: list[LiveLeaf] = []

    def placed() -> bytes:
        leaves.extend(live_leaves(tree))
        return local_placements(leaves)

    own = own_copies(group.exchange("placed", placed))

    def planned() -> bytes:
        plans.append(plan_save(leaves, own, given, options, group.index, group.count))
        place = f"the path {target!r}" if step is None else f"step {step} of the path {target!r}"
        return b"\n".join([place.encode(), plans[0].lines])

    check_same(group.exchange("planned", planned))
    return plans[0]


def open_save(
    group: ProcessGroup, plan: SavePlan, options: SaveOptions, target: str, step: int | None
) -> OpenSave:
    """Begins the transaction of the target, or refuses the target; no chunk is written yet.

    With ``step`` the target is the folder of a training run. Only process 0 looks up how its steps are named,
    since the others may see an older state of a shared folder. In a bucket an overwritten checkpoint is gone from
    here on.
    """
    closing = ExitStack()
    held: list[Transaction] = []

    def opened() -> bytes:
        if group.index:
            return b""
        place = locate(target)
        if step is not None:
            place = step_folder(place, step, overwrite=options.overwrite)
        _check(place, plan, options)
        held.append(closing.enter_context(lock_target(place)))
        _begin(held[0], place, options)
        return os.fsencode(str(place))

    try:
        text, *_ = group.exchange("staged", opened)
    except BaseException:
        with closing:
            for transaction in held:
                transaction.abort()
        raise
    place = locate(os.fsdecode(text))
    return OpenSave(group, plan, options, place, held[0] if held else None, closing)


def snapshot(opened: OpenSave) -> None:
    """Copies or keeps the data, so that the tree may change and its arrays may be donated."""
    try:
        plan = opened.plan
        wanted = {
            id(shard.data)
            for chunk in plan.chunks
            for shard, _, _ in parts(plan.tensors[chunk.name], chunk.box)
        }
        opened.plan = replace(plan, tensors=keep_data(dict(plan.tensors), wanted))
    except BaseException as error:  # noqa: BLE001  raised again, here and in every process
        with _given_back(opened):
            opened.group.exchange("written", partial(_raise, error), settle=opened.settles)


def finish_save(opened: OpenSave) -> None:
    """Writes the chunks and publishes the checkpoint, which appears whole or not at all."""
    with _given_back(opened):
        write = partial(_write, opened)
        parts = opened.group.exchange("written", write, settle=opened.settles)
        opened.is_written = True
        opened.group.exchange("published", partial(_publish, opened, parts))


@contextmanager
def _given_back(opened: OpenSave) -> Iterator[None]:
    """Gives the target back at the end, and removes unpublished output.

    If another process may still write to the target's own name, the output stays, marked as unfinished, for the next save to
    remove: files that are written after a removal would belong to no save.
    """
    with opened.closing:
        try:
            yield
        finally:
            if opened.transaction is not None and (
                opened.is_written or not opened.settles or opened.group.settled("written")
            ):
                opened.transaction.abort()


def _check(place: Location, plan: SavePlan, options: SaveOptions) -> None:
    check_new(place, overwrite=options.overwrite)
    refuse_other_content(place)
    _check_space(place, plan, options)


def _begin(transaction: Transaction, place: Location, options: SaveOptions) -> None:
    """Begins with nothing written and no records: no save resumes another one."""
    check_new(place, overwrite=options.overwrite)  # another run may have published it meanwhile
    refuse_other_content(place)
    transaction.begin({"made_by": "reshard.save"})
    transaction.close()


def _check_space(place: Location, plan: SavePlan, options: SaveOptions) -> None:
    """Refuses raw output that does not fit; the size of compressed output is not known in advance."""
    if options.encoding.compressor != "none":
        return
    need, free = total_bytes(plan.target), place.parent.free_bytes()
    if free is not None and need > free:
        raise StorageError(
            f"{str(place)!r} needs {format_bytes(need)}, but its file system has only {format_bytes(free)} "
            "free; free space, or choose another path"
        )


def _write(opened: OpenSave) -> bytes:
    """Writes this process's chunks; returns its contributions to the tensors' digests and to the sum of puts, as JSON."""
    plan = opened.plan
    if opened.transaction is not None:
        prepare_files(plan.files, recording_versions(opened.transaction.root, opened.put))
    with Writeback() as writeback:
        writer = ChunkWriter(plan, root_text(opened.place), opened.options.max_memory, writeback)
        for_each(plan.chunks, writer.write, opened.options.workers)
    if opened.transaction is None:
        places = (place for c in plan.chunks for place in plan.files.places(c.name, c.index))
        make_durable(opened.place, list(dict.fromkeys(place.file for place in places)))
    sums = {name: f"{value:x}" for name, value in writer.sums.items()}
    return json.dumps({"sums": sums, "put": f"{writer.put_sum:x}"}).encode()


def _digests(plan: SavePlan, parts: list[Mapping[str, Any]]) -> dict[str, str]:
    """Each tensor's digest, from the contributions of all processes."""
    sums = dict.fromkeys(plan.target.tensors, 0)
    for part in parts:
        for name, value in part["sums"].items():
            sums[name] ^= int(value, 16)
    return {
        name: digest_text(value, plan.target.tensors[name].spec.nbytes)
        for name, value in sums.items()
    }


def _publish(opened: OpenSave, written: list[bytes]) -> bytes:
    transaction, plan = opened.transaction, opened.plan
    if transaction is not None:
        parts = [json.loads(part) for part in written]
        chunks = [int(part["put"], 16) for part in parts]
        if opened.settles:
            # Metadata that is put after a CheckpointManager has deleted the rest would look like a target.
            check_saved(plan, transaction.root, chunks, opened.put)
        root = recording_versions(transaction.root, opened.put)
        transaction.mark(finish_files(plan.files, root, _digests(plan, parts), ()))

        def prove(marks: Mapping[str, str]) -> None:
            check_saved(plan, transaction.root, chunks, {**opened.put, **marks})

        overwrite = opened.options.overwrite
        transaction.commit(overwrite=overwrite, check=refuse_other_content, prove=prove)
    return b""


def _raise(error: BaseException) -> bytes:
    raise error


def step_folder(run: Location, step: int, *, overwrite: bool) -> Location:
    """The folder of a step of the run in the folder ``run``: named like its other steps.

    Raises StorageError if ``run`` is a checkpoint, or its names do not tell how steps are named;
    TargetExistsError if the step exists and may not be replaced.
    """
    if has_checkpoint(run):
        raise StorageError(
            f"{str(run)!r} is a checkpoint itself, so step {step} cannot be saved in it; give the folder of the "
            "training run, or leave the step out (step)"
        )
    if not run.is_folder():
        return run / str(step)
    steps = [one for one in run_steps(run) if one.is_folder]
    if not steps and (others := steps_of_words(run)):
        refuse_several_words(str(run), run)
        raise StorageError(
            f"{str(run)!r} contains {others[0].name!r}, which may or may not be a step, so it is not clear how step {step} "
            "should be called; give the whole path without a step (step), or another folder"
        )
    there = [one for one in steps if one.step == step]
    if there and not overwrite:
        raise TargetExistsError(
            f"step {step} of {str(run)!r} exists already ({there[0].name!r}) and was left untouched; save another "
            "step, or ask to overwrite it (overwrite)"
        )
    return run / (there[0].name if there else _step_name(step, steps))


def _step_name(step: int, there: Sequence[StepName]) -> str:
    """The name that CheckpointManager would give the step, with its options guessed from the other names."""
    if not there:
        return str(step)
    padded = {
        len(number) for one in there if (number := one.number).startswith("0") and number != "0"
    }
    number = f"{step:0{max(padded)}d}" if padded else str(step)
    return there[0].name.removesuffix(there[0].number) + number
