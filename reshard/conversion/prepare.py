"""Prepares a conversion: opens, plans, and refuses what can be refused before a byte moves."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from reshard.conversion.check_target import CheckedOptions, CheckedTarget
from reshard.conversion.plan import ConversionPlan, MultiConversionPlan, PlannedTensor
from reshard.conversion.target_plan import TargetPlan, make_target
from reshard.engine.error_context import about_target
from reshard.engine.metadata_budget import BYTES_PER_DEVICE_ID, BYTES_PER_MOVE, open_to_convert
from reshard.formats.base import Reader, TargetCheckpoint
from reshard.formats.checksum_warnings import record_warnings, unvouched
from reshard.formats.registry import local_path, refuse_other_content, target_path
from reshard.geometry.grid import Grid
from reshard.planning.move import Move, Plan
from reshard.planning.multi_plan import MultiPlan
from reshard.planning.planner import make_multi_plan
from reshard.planning.target_layouts import layout_warnings
from reshard.storage.host import free_bytes
from reshard.storage.local import storage_errors
from reshard.storage.target_checks import check_apart, check_target


class Prepared(Struct, frozen=True):
    """A plan with the open source and the target that it is about, whose folder is ``path``."""

    path: str
    reader: Reader
    target: TargetPlan
    summary: ConversionPlan


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
            with about_target(_name(target, wanted)):
                check_target(Path(target), Path(source), overwrite=one.options.overwrite)
                refuse_other_content(Path(target))
    goals = []
    for target, one in zip(targets, wanted, strict=True):
        with about_target(_name(target, wanted)):
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
