"""What a conversion will do: it is prepared, and refused where it can be, without moving a byte."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from reshard.engine.blame import of_target
from reshard.engine.layouts import layout_warnings
from reshard.engine.open_within import BYTES_PER_MOVE, open_to_convert
from reshard.engine.options import Options, Wanted
from reshard.engine.record_warnings import record_warnings
from reshard.engine.target import Target, make_target
from reshard.engine.target_folder import refuse_other_content, target_path
from reshard.formats.base import Reader, TargetCheckpoint
from reshard.formats.detect import local_path
from reshard.layout.tensor_spec import TensorSpec
from reshard.planning.joint_plan import JointPlan
from reshard.planning.move import Move, Plan
from reshard.planning.planner import make_joint_plan
from reshard.storage.host import free_bytes
from reshard.storage.local import storage_errors
from reshard.storage.target_checks import check_apart, check_target


class PlannedTensor(Struct, frozen=True):
    """One tensor of a plan, with both ends.

    Attributes:
        partition: strategy, amount and axis, where the target is split by count or size.
    """

    source: TensorSpec
    target: TensorSpec
    move: Move
    partition: Mapping[str, Any] | None = None


class ConversionPlan(Struct, frozen=True):
    """What a conversion will do, before it does it.

    Attributes:
        carried: leaves that are no tensors and travel along unchanged.
        dropped: leaves of the source that are left out.
        free_bytes: what the target's file system has left.
    """

    source: str
    target: str
    plan: Plan
    tensors: tuple[PlannedTensor, ...]
    carried: tuple[str, ...]
    dropped: tuple[str, ...]
    warnings: tuple[str, ...]
    free_bytes: int


class Prepared(Struct, frozen=True):
    """A plan with the open source and the target that it is about."""

    reader: Reader
    target: Target
    summary: ConversionPlan


class JointConversionPlan(Struct, frozen=True):
    """What a conversion to several targets will do, before it does it.

    Attributes:
        plans: of each target, in the order in which they were given.
        joint: which of their tensors share a read, and what all of it costs.
    """

    source: str
    plans: tuple[ConversionPlan, ...]
    joint: JointPlan


class JointPrepared(Struct, frozen=True):
    """What is prepared for each target, and the plan for all."""

    targets: tuple[Prepared, ...]
    joint: JointPlan

    @property
    def summary(self) -> JointConversionPlan:
        plans = tuple(prepared.summary for prepared in self.targets)
        return JointConversionPlan(plans[0].source, plans, self.joint)


def prepare(source: str, target: str, options: Options) -> Prepared:
    """Opens the source, plans, and refuses whatever can be refused before a byte moves."""
    return prepare_joint(source, [Wanted(target, options)]).targets[0]


def prepare_joint(
    source: str, wanted: Sequence[Wanted], finished: Collection[int] = ()
) -> JointPrepared:
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
    metadata = _metadata_bytes(reader, sum(len(g.requests) for g in goals), wanted)
    requests = [goal.requests for goal in goals]
    joint = make_joint_plan(requests, first.max_memory, first.workers, metadata)
    prepared = tuple(
        Prepared(
            reader,
            replace(goal, requests=()),  # the plan has what they said
            _summary(source, target, plan, goal, one.options, reader),
        )
        for target, plan, goal, one in zip(targets, joint.plans, goals, wanted, strict=True)
    )
    return JointPrepared(prepared, joint)


def _name(target: str, wanted: Sequence[Wanted]) -> str | None:
    """What errors call a target: nothing where it is the only one."""
    return target if len(wanted) > 1 else None


def _summary(
    source: str, target: str, plan: Plan, goal: Target, options: Options, reader: Reader
) -> ConversionPlan:
    return ConversionPlan(
        source,
        target,
        plan,
        tuple(_planned(m, goal.checkpoint) for m in plan.moves),
        tuple(leaf.name for leaf in goal.checkpoint.leaves if not leaf.tensor),
        goal.dropped,
        (
            *layout_warnings(options.layout, list(goal.checkpoint.tensors)),
            *record_warnings(reader),
        ),
        space_left(target),
    )


def _metadata_bytes(reader: Reader, tensors: int, wanted: Sequence[Wanted]) -> int:
    """What all ends keep in memory; to read a target back it is opened, too, one after the other."""
    is_read_back = any(one.options.check == "readback" for one in wanted)
    read_back = reader.metadata_bytes if is_read_back else 0
    return reader.metadata_bytes + BYTES_PER_MOVE * tensors + read_back


def _planned(move: Move, checkpoint: TargetCheckpoint) -> PlannedTensor:
    source, target = move.source.spec, move.target.spec
    return PlannedTensor(source, target, move, checkpoint.tensors[target.name].partition)


def space_left(target: str) -> int:
    """Bytes that may still be written where ``target`` is or will be."""
    with storage_errors("look at", target):
        return free_bytes(Path(target).absolute().parent)
