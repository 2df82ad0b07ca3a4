"""The steps of a save: plan, stage, write, publish; in one process or in a group.

Every step is an exchange between the processes (``Group.exchange``), so an error in one of them ends the save in all.
Only process 0 makes the staging folder and publishes it. The others write their chunks into it, on a file system that
all share.
"""

from __future__ import annotations

import json
import os
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from reshard.checksums.tensor_digest import CRC64NVME
from reshard.checksums.tensor_digest import finish as finish_digest
from reshard.errors import StorageError
from reshard.formats.registry import refuse_other_content
from reshard.geometry.sizes import format_bytes
from reshard.saving.given_layouts import GivenLayouts
from reshard.saving.host_chunk import parts
from reshard.saving.host_copy import keep_data
from reshard.saving.options import SaveOptions
from reshard.saving.plan import SavePlan, plan_save, total_bytes
from reshard.saving.processes import ProcessGroup, check_same
from reshard.saving.step_folder import step_folder
from reshard.saving.write import ChunkWriter, for_each
from reshard.storage.host import free_bytes
from reshard.storage.local import storage_errors
from reshard.storage.local_store import LOCAL
from reshard.storage.location import Location
from reshard.storage.publishing import publish
from reshard.storage.staging import Staging, staged, staging_for
from reshard.storage.syncing import sync_files
from reshard.storage.target_checks import check_new
from reshard.storage.writeback import Writeback


class OpenSave(Struct):
    """A save that is planned and staged; ``closing`` releases the staging folder."""

    group: ProcessGroup
    plan: SavePlan
    options: SaveOptions
    staging: Staging
    closing: ExitStack


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

    def planned() -> bytes:
        plans.append(plan_save(tree, given, options, group.index, group.count))
        place = f"the path {target!r}" if step is None else f"step {step} of the path {target!r}"
        return b"\n".join([place.encode(), plans[0].lines])

    check_same(group.exchange("planned", planned))
    return plans[0]


def open_save(
    group: ProcessGroup, plan: SavePlan, options: SaveOptions, target: str, step: int | None
) -> OpenSave:
    """Takes the staging folder of the target, or refuses the target; nothing is written yet.

    With ``step`` the target is the folder of a training run. Only process 0 looks up how its steps are named,
    since the others may see an older state of a shared folder.
    """
    closing = ExitStack()
    stagings: list[Staging] = []

    def opened() -> bytes:
        if group.index:
            return b""
        folder = Path(target)
        if step is not None:
            folder = step_folder(folder, step, overwrite=options.overwrite)
        stagings.append(_stage(folder, plan, options, closing))
        return os.fsencode(folder)

    try:
        folder, *_ = group.exchange("staged", opened)
    except BaseException:
        closing.close()
        raise
    staging = stagings[0] if stagings else staging_for(Path(os.fsdecode(folder)))
    return OpenSave(group, plan, options, staging, closing)


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
        with opened.closing:
            opened.group.exchange("written", partial(_raise, error))


def finish(opened: OpenSave) -> None:
    """Writes the chunks and publishes the checkpoint, which appears whole or not at all."""
    with opened.closing:
        contributions = opened.group.exchange("written", partial(_write, opened))
        digests = _digests(opened.plan, contributions)
        opened.group.exchange("published", partial(_publish, opened, digests))


def _stage(target: Path, plan: SavePlan, options: SaveOptions, closing: ExitStack) -> Staging:
    check_new(target, overwrite=options.overwrite)
    refuse_other_content(Location(LOCAL, str(target)))
    _check_space(target, plan, options)
    return closing.enter_context(staged(target))


def _check_space(target: Path, plan: SavePlan, options: SaveOptions) -> None:
    """Refuses raw output that does not fit; the size of compressed output is not known in advance."""
    if options.encoding.compressor != "none":
        return
    with storage_errors("look at", target):
        free = free_bytes(target.parent)
    need = total_bytes(plan.target)
    if need > free:
        raise StorageError(
            f"{str(target)!r} needs {format_bytes(need)}, but its file system has only {format_bytes(free)} "
            "free; free space, or choose another path"
        )


def _write(opened: OpenSave) -> bytes:
    """Writes this process's chunks; returns their contributions to the tensors' digests, as JSON."""
    plan, root, group = opened.plan, opened.staging.root, opened.group
    if group.index == 0:
        plan.writer.prepare(Location(LOCAL, str(root)))
    with Writeback() as writeback:
        writer = ChunkWriter(plan, str(root), opened.options.max_memory, writeback)
        for_each(plan.chunks, writer.write, opened.options.workers)
    if group.index:
        places = (place for c in plan.chunks for place in plan.writer.places(c.name, c.index))
        sync_files(root, list(dict.fromkeys(place.file for place in places)))
    return json.dumps({name: f"{value:x}" for name, value in writer.sums.items()}).encode()


def _digests(plan: SavePlan, contributions: list[bytes]) -> dict[str, str]:
    """Each tensor's digest, from the contributions of all processes."""
    sums = dict.fromkeys(plan.target.tensors, 0)
    for contribution in contributions:
        for name, value in json.loads(contribution).items():
            sums[name] ^= int(value, 16)
    return {
        name: f"{finish_digest(CRC64NVME, value, plan.target.tensors[name].spec.nbytes):016x}"
        for name, value in sums.items()
    }


def _publish(opened: OpenSave, digests: dict[str, str]) -> bytes:
    if opened.group.index == 0:
        root = Location(LOCAL, str(opened.staging.root))
        for name, data in opened.plan.writer.finish(root, digests, ()).items():
            (root / name).write(data)
        publish(opened.staging, overwrite=opened.options.overwrite, check=refuse_other_content)
    return b""


def _raise(error: BaseException) -> bytes:
    raise error
