"""A save from end to end: agree, stage, write, commit; by one process or by a group of them.

Only process 0 makes the staging folder and publishes it. The others write their chunks into it, on a
file system that all share.
"""

from __future__ import annotations

import json
import os
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from msgspec import Struct

from reshard.checksums.tensor_digest import CRC64NVME, finish
from reshard.errors import StorageError
from reshard.formats.registry import refuse_other_content
from reshard.geometry.sizes import format_bytes
from reshard.saving.given_layouts import Given
from reshard.saving.host_chunk import parts
from reshard.saving.host_copy import kept
from reshard.saving.plan import SaveOptions, SavePlan, plan_save, total_bytes
from reshard.saving.processes import Group, check_same, group_of
from reshard.saving.step_folder import step_folder
from reshard.saving.write import PieceWriter, for_each
from reshard.storage.host import free_bytes
from reshard.storage.local import storage_errors
from reshard.storage.publishing import publish
from reshard.storage.staging import Staging, staged, staging_for
from reshard.storage.syncing import sync_files
from reshard.storage.target_checks import check_new
from reshard.storage.writeback import Writeback


class Run(Struct):
    """A save under way: planned and staged, nothing written yet."""

    group: Group
    plan: SavePlan
    options: SaveOptions
    staging: Staging
    closing: ExitStack

    def keep(self) -> None:
        """Take hold of the data, so that the tree may change or its arrays be donated."""
        try:
            self._hold()
        except BaseException as error:  # noqa: BLE001  raised again, here and in every process
            with self.closing:
                self.group.together("written", partial(_raise, error))

    def _hold(self) -> None:
        wanted = {
            id(shard.data)
            for piece in self.plan.pieces
            for shard, _, _ in parts(self.plan.tensors[piece.name], piece.box)
        }
        tensors = kept(dict(self.plan.tensors), wanted)
        plan = self.plan
        self.plan = SavePlan(plan.target, plan.writer, tensors, plan.pieces, plan.need_bytes)

    def finish(self) -> None:
        """Write, and publish; the target appears whole or not at all."""
        with self.closing:
            payloads = self.group.together("written", self._write)
            digests = _digests(self.plan, payloads)
            self.group.together("published", lambda: self._publish(digests))

    def _write(self) -> bytes:
        plan, root = self.plan, self.staging.root
        if self.group.index == 0:
            plan.writer.prepare(root)
        with Writeback() as writeback:
            pieces = PieceWriter(plan, plan.tensors, str(root), self.options.max_memory, writeback)
            for_each(plan.pieces, pieces.write, self.options.workers)
        if self.group.index:
            files = [plan.writer.chunk_file(p.name, p.index) for p in plan.pieces]
            sync_files(root, [file for file in files if file is not None])
        return json.dumps({name: f"{value:x}" for name, value in pieces.sums.items()}).encode()

    def _publish(self, digests: dict[str, str]) -> bytes:
        if self.group.index == 0:
            self.plan.writer.finish(self.staging.root, digests)
            publish(self.staging, overwrite=self.options.overwrite, check=refuse_other_content)
        return b""


def _raise(error: BaseException) -> bytes:
    raise error


def begin(
    path: str,
    tree: Any,
    given: Given,
    options: SaveOptions,
    timeout_s: float,
    step: int | None = None,
) -> Run:
    """Plan the save and take the staging folder, or refuse; nothing is written yet.

    With ``step`` the path is a training run's folder. Process 0 alone looks how its steps are called, since
    the others may see an older state of a shared folder.
    """
    group = group_of(path if step is None else f"{path}/{step}", timeout_s)
    plans: list[SavePlan] = []

    def planned() -> bytes:
        plans.append(plan_save(tree, given, options, group.index, group.count))
        place = f"the path {path!r}" if step is None else f"step {step} of the path {path!r}"
        return b"\n".join([place.encode(), plans[0].lines])

    check_same(group.together("planned", planned))
    closing = ExitStack()
    stagings: list[Staging] = []

    def opened() -> bytes:
        if group.index:
            return b""
        # The caller may go to another folder while the rest is written.
        target = Path(path).absolute()
        if step is not None:
            target = step_folder(target, step, overwrite=options.overwrite)
        stagings.append(_stage(target, plans[0], options, closing))
        return os.fsencode(target)

    try:
        target, *_ = group.together("staged", opened)
    except BaseException:
        closing.close()
        raise
    staging = stagings[0] if stagings else staging_for(Path(os.fsdecode(target)))
    return Run(group, plans[0], options, staging, closing)


def _stage(target: Path, plan: SavePlan, options: SaveOptions, closing: ExitStack) -> Staging:
    check_new(target, overwrite=options.overwrite)
    refuse_other_content(target)
    _check_space(target, plan, options)
    return closing.enter_context(staged(target))


def _check_space(target: Path, plan: SavePlan, options: SaveOptions) -> None:
    """Raw output has a known size; compressed output may be smaller, so it is not judged."""
    if options.encoding.compressor != "none":
        return
    with storage_errors("look at", target):
        free = free_bytes(target.absolute().parent)
    need = total_bytes(plan.target)
    if need > free:
        raise StorageError(
            f"{str(target)!r} needs {format_bytes(need)}, but its file system has only {format_bytes(free)} "
            "free; free space, or choose another path"
        )


def _digests(plan: SavePlan, payloads: list[bytes]) -> dict[str, str]:
    """Each tensor's digest, from what every process added to it."""
    sums = dict.fromkeys(plan.target.tensors, 0)
    for payload in payloads:
        for name, value in json.loads(payload).items():
            sums[name] ^= int(value, 16)
    return {
        name: f"{finish(CRC64NVME, value, plan.target.tensors[name].spec.nbytes):016x}"
        for name, value in sums.items()
    }
