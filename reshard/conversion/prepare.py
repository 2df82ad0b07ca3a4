"""Prepares a conversion: opens, plans, and refuses what can be refused before a byte moves."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from reshard.conversion.check_target import CheckedOptions, CheckedTarget
from reshard.conversion.target_plan import TargetPlan, make_target
from reshard.engine.error_context import of_target
from reshard.engine.metadata_budget import BYTES_PER_DEVICE_ID, BYTES_PER_MOVE, open_to_convert
from reshard.formats.base import Reader, TargetCheckpoint
from reshard.formats.checksum_warnings import record_warnings, unvouched
from reshard.formats.registry import local_path, refuse_other_content, target_path
from reshard.geometry.grid import Grid
from reshard.geometry.sizes import format_bytes
from reshard.layout.record_text import counted, several, warned
from reshard.layout.tensor_spec import TensorSpec, change_text
from reshard.planning.move import Move, Plan
from reshard.planning.multi_plan import MultiPlan
from reshard.planning.planner import make_multi_plan
from reshard.planning.target_layouts import layout_warnings
from reshard.storage.host import free_bytes
from reshard.storage.local import storage_errors
from reshard.storage.target_checks import check_apart, check_target


class PlannedTensor(Struct, frozen=True):
    """One tensor of a plan, with both ends.

    Attributes:
        partition: strategy, amount and axis, where the target is split by count or size.
        slices: who holds what of the target, where ``target.slices`` does not say it.
    """

    source: TensorSpec
    target: TensorSpec
    move: Move
    partition: Mapping[str, Any] | None = None
    slices: Grid | None = None

    def __repr__(self) -> str:
        return f"PlannedTensor({change_text(self.source, self.target)}, {self.move.strategy})"

    @property
    def source_shards(self) -> Grid | None:
        """How the source's layout cuts it; None where the source recorded no layout."""
        return None if self.source.layout is None else self.source.slices

    @property
    def target_shards(self) -> Grid | None:
        """How the target's layout cuts it; None where neither a layout nor a partition does.

        The chunks that are stored (``target.storage``) may be larger or smaller than the shards.
        """
        if self.slices is not None:
            return self.slices
        return None if self.target.layout is None else self.target.slices


class ConversionPlan(Struct, frozen=True):
    """What a conversion will do, before it does it.

    Attributes:
        target: None where none was named; then what depends on it is not known.
        carried: leaves that are no tensors and travel along unchanged.
        dropped: leaves of the source that are left out.
        free_bytes: what the target's file system has left.
    """

    source: str
    target: str | None
    plan: Plan
    tensors: tuple[PlannedTensor, ...]
    carried: tuple[str, ...]
    dropped: tuple[str, ...]
    warnings: tuple[str, ...]
    free_bytes: int | None

    def __repr__(self) -> str:
        target = "" if self.target is None else f" → {self.target!r}"
        headline = f"{self.source!r}{target}: {_costs(self.plan)}"
        return several("ConversionPlan", headline, self.tensors, warned(self.warnings))

    @property
    def tasks(self) -> int:
        """How many tasks the moves make."""
        return self.plan.tasks

    @property
    def decoded_bytes(self) -> int:
        """Bytes decoded from source chunks, repetition included."""
        return self.plan.decoded_bytes

    @property
    def written_bytes(self) -> int:
        """Encoded bytes of the target's chunks."""
        return self.plan.written_bytes

    @property
    def amplification(self) -> float:
        """Bytes decoded for each byte that the source stores."""
        return self.plan.amplification

    @property
    def metadata_bytes(self) -> int:
        """What the checkpoint's index and the plan itself keep in memory."""
        return self.plan.metadata_bytes

    @property
    def peak_bytes(self) -> int:
        """Buffers in memory at the worst moment; never above ``max_memory``."""
        return self.plan.peak_bytes


def _costs(plan: Plan) -> str:
    moved = f"reads {format_bytes(plan.decoded_bytes)}, writes {format_bytes(plan.written_bytes)}"
    tasks = f"{counted(len(plan.moves), 'tensor')} in {counted(plan.tasks, 'task')}"
    return f"{tasks}, {moved}, {format_bytes(plan.peak_bytes)} of buffers at most"


class Prepared(Struct, frozen=True):
    """A plan with the open source and the target that it is about, whose folder is ``path``."""

    path: str
    reader: Reader
    target: TargetPlan
    summary: ConversionPlan


class MultiConversionPlan(Struct, frozen=True):
    """What a conversion to several targets will do, before it does it.

    Attributes:
        plans: of each target, in the order in which they were given.
        total: which of their tensors share a read, and what all of it costs.
    """

    source: str
    plans: tuple[ConversionPlan, ...]
    total: MultiPlan

    def __repr__(self) -> str:
        lines = [str(plan).partition("\n")[0] for plan in self.plans]
        read = (
            f"reads {format_bytes(self.total.decoded_bytes)} in {counted(self.total.tasks, 'task')}"
        )
        headline = f"{self.source!r}: {counted(len(self.plans), 'target')}, {read}"
        return several("MultiConversionPlan", headline, lines)


class MultiPrepared(Struct, frozen=True):
    """What is prepared for each target, and the plan for all."""

    targets: tuple[Prepared, ...]
    joint: MultiPlan

    @property
    def summary(self) -> MultiConversionPlan:
        plans = tuple(prepared.summary for prepared in self.targets)
        return MultiConversionPlan(plans[0].source, plans, self.joint)


def prepare(source: str, target: str, options: CheckedOptions) -> Prepared:
    """Opens the source, plans, and refuses whatever can be refused before a byte moves."""
    return prepare_multi(source, [CheckedTarget(target, options)]).targets[0]


def foresee(source: str, options: CheckedOptions) -> ConversionPlan:
    """The plan of a conversion to a target that is not named yet."""
    source = local_path(source)
    reader = open_to_convert(source, options.max_memory, 1)
    target = make_target(reader, options)
    (plan,) = _joint_plan(reader, [target], [options]).plans
    return _summary(source, None, plan, target, options, reader)


def prepare_multi(
    source: str, wanted: Sequence[CheckedTarget], finished: Collection[int] = ()
) -> MultiPrepared:
    """Opens the source and plans for all targets, and refuses whatever can be refused before a byte moves.

    The targets whose numbers are ``finished`` are there already. They are planned all the same: which
    targets share a read, and how, must not depend on how far an earlier run came.
    """
    source, first = local_path(source), wanted[0].options
    targets = [target_path(one.target) for one in wanted]
    reader = open_to_convert(source, first.max_memory, len(wanted))
    check_apart([Path(target) for target in targets])
    for number, (target, one) in enumerate(zip(targets, wanted, strict=True)):
        if number not in finished:
            with of_target(_name(target, wanted)):
                check_target(Path(target), Path(source), overwrite=one.options.overwrite)
                refuse_other_content(Path(target))
    goals = []
    for target, one in zip(targets, wanted, strict=True):
        with of_target(_name(target, wanted)):
            goals.append(make_target(reader, one.options))
    joint = _joint_plan(reader, goals, [one.options for one in wanted])
    prepared = tuple(
        Prepared(
            target,
            reader,
            replace(goal, requests=()),  # the plan has what they said
            _summary(source, target, plan, goal, one.options, reader),
        )
        for target, plan, goal, one in zip(targets, joint.plans, goals, wanted, strict=True)
    )
    return MultiPrepared(prepared, joint)


def _joint_plan(
    reader: Reader, targets: Sequence[TargetPlan], options: Sequence[CheckedOptions]
) -> MultiPlan:
    requests = [target.requests for target in targets]
    metadata = _metadata_bytes(reader, [target.checkpoint for target in targets], options)
    return make_multi_plan(requests, options[0].max_memory, options[0].workers, metadata)


def _name(target: str, wanted: Sequence[CheckedTarget]) -> str | None:
    """What errors call a target: nothing where it is the only one."""
    return target if len(wanted) > 1 else None


def _summary(
    source: str,
    target: str | None,
    plan: Plan,
    goal: TargetPlan,
    options: CheckedOptions,
    reader: Reader,
) -> ConversionPlan:
    return ConversionPlan(
        source,
        target,
        plan,
        tuple(_planned(m, goal.checkpoint) for m in plan.moves),
        tuple(leaf.name for leaf in goal.checkpoint.leaves if not leaf.tensor),
        goal.dropped,
        (
            *layout_warnings(
                options.layout, list(goal.checkpoint.tensors), [m.source.spec for m in plan.moves]
            ),
            *goal.warnings,
            *record_warnings(unvouched(reader)),
        ),
        None if target is None else space_left(target),
    )


def _metadata_bytes(
    reader: Reader, targets: Sequence[TargetCheckpoint], options: Sequence[CheckedOptions]
) -> int:
    """What all ends keep in memory; to read a target back it is opened, too, one after the other."""
    is_read_back = any(one.check == "readback" for one in options)
    read_back = reader.metadata_bytes if is_read_back else 0
    written = sum(BYTES_PER_MOVE * len(t.tensors) + _device_id_bytes(t) for t in targets)
    return reader.metadata_bytes + written + read_back


def _device_id_bytes(target: TargetCheckpoint) -> int:
    """Of the text that names the devices of every tensor, which Orbax wants for each anew."""
    meshes = (t.spec.layout.device_mesh for t in target.tensors.values() if t.spec.layout)
    return sum(
        BYTES_PER_DEVICE_ID * len(mesh.device_ids) for mesh in meshes if mesh and mesh.device_ids
    )


def _planned(move: Move, checkpoint: TargetCheckpoint) -> PlannedTensor:
    source, written = move.source.spec, checkpoint.tensors[move.target.spec.name]
    shards = written.shards if written.partition else None
    slices = shards if isinstance(shards, Grid) else None
    return PlannedTensor(source, move.target.spec, move, written.partition, slices)


def space_left(target: str) -> int:
    """Bytes that may still be written where ``target`` is or will be."""
    with storage_errors("look at", target):
        return free_bytes(Path(target).absolute().parent)
