"""The steps of a save: plan, stage, write, publish; in one process or in a group.

Every step is an exchange between the processes (``Group.exchange``), so an error in one of them ends the save in all.
Only process 0 has the transaction: it begins and commits it. The others write their chunks below its root, in a bucket or on
a file system that all share.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from reshard.checksums.sums import digest_text
from reshard.errors import StorageError, TargetExistsError
from reshard.formats.carry_out import finish_files, prepare_files
from reshard.formats.registry import has_checkpoint, refuse_other_content
from reshard.formats.step_names import StepName
from reshard.formats.steps import refuse_several_words, run_steps, steps_of_words
from reshard.geometry.sizes import format_bytes
from reshard.saving.given_layouts import GivenLayouts
from reshard.saving.host_chunk import keep_data, parts
from reshard.saving.options import SaveOptions
from reshard.saving.plan import SavePlan, plan_save, total_bytes
from reshard.saving.processes import ProcessGroup, check_same, local_placements, own_copies
from reshard.saving.tree import LiveLeaf, live_leaves
from reshard.saving.write import ChunkWriter, check_saved, for_each
from reshard.storage.local.syncing import Writeback
from reshard.storage.location import Location, locate
from reshard.storage.target import recording_versions
from reshard.storage.targets import check_new, lock_target, make_durable, root_text
from reshard.storage.transaction import Transaction


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
            if opened.transaction is not None and _is_quiet(opened):
                opened.transaction.abort()


def _is_quiet(opened: OpenSave) -> bool:
    return opened.is_written or not opened.settles or opened.group.settled("written")


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
