"""A plan for a page: requested from the library, and drawn.

Each device of a mesh is a box whose colours show the source shards of its bytes. The last axis of the mesh runs across, all others run
down; long rows are broken::

    source, mesh (data=2, model=2)         target, mesh (model=4)
    ┌─ 0 ─┬─ 1 ─┐                          ┌─ 0 ─┬─ 1 ─┬─ 2 ─┬─ 3 ─┐
    │  0  │  1  │   each holds a shard     │0│ 2 │0│ 2 │1│ 3 │1│ 3 │   half from each of two
    ├─ 2 ─┼─ 3 ─┤                          └─────┴─────┴─────┴─────┘
    │  2  │  3  │
    └─────┴─────┘

A tensor that is split without a mesh has a box for each shard.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

from fastapi import Request

from reshard import DeviceMesh, TensorLayout
from reshard.geometry.sizes import format_bytes
from reshard.layout.shard_picture import ShardPicture
from reshard_server.api.answers import answer_to
from reshard_server.auth.tokens import Caller
from reshard_server.db.stored.kinds import KINDS, content_then
from reshard_server.jobs.check_request import for_field
from reshard_server.resources import questions
from reshard_server.schemas.conversion import (
    Conversion,
    PlanRequest,
    TargetRequest,
)
from reshard_server.services import Services

MOST_DEVICES = 128
"""Limit of the boxes of one mesh, and of the rows of its table."""

MOST_PARTS = 16
"""Limit of the source shards that are listed for one device."""

MOST_COLUMNS = 16
WIDTH, HEIGHT, GAP, EDGE = 72, 44, 6, 4
SMALL_WIDTH = 34
COLOURS = 8
LETTERS_WIDTH = 15
"""Narrower segments have no number; the box's title and the table have it."""

Share = tuple[int, float]
"""A source shard, and the part of the bytes that comes from it."""


class BoxPart(NamedTuple):
    """A coloured part of a box."""

    x: float
    width: float
    colour: str
    label: str


class Device(NamedTuple):
    """One device, or one shard if there is no mesh.

    Attributes:
        shard: its shard; shards are numbered row by row.
        place: its coordinates on the mesh.
        origin: the source of its bytes, as text.
    """

    number: int
    shard: int
    place: str
    origin: str
    x: float
    y: float
    width: float
    pieces: tuple[BoxPart, ...]


class MeshPicture(NamedTuple):
    """The picture of a plan's source or target.

    Attributes:
        total: the number of devices, including those that are not drawn.
        is_mesh: True if the boxes are devices of a mesh, False for shards.
    """

    devices: tuple[Device, ...]
    total: int
    is_mesh: bool
    width: float
    height: float


def drawn_side(tensor: Mapping[str, Any], side: Literal["source", "target"]) -> MeshPicture:
    """Each device of one side with its shard; of the target with the source of its bytes, if the plan has shares."""
    is_source, axes, mesh = side == "source", tensor[f"{side}_axes"], tensor[f"{side}_mesh"]
    is_mesh = mesh is not None and axes is not None and (is_source or not tensor["partition"])
    layout = TensorLayout(axes, DeviceMesh(mesh["shape"], mesh["axes"])) if is_mesh else None
    picture = ShardPicture(tuple(tensor[f"{side}_parts"]), layout)
    shares: dict[int, list[Share]] = {}
    for target, source, share in tensor["shares"] or ():
        shares.setdefault(target, []).append((source, share))
    total = math.prod(picture.mesh_shape)
    columns = max(1, min(*picture.mesh_shape[-1:], MOST_COLUMNS))
    width = WIDTH if columns <= 8 else SMALL_WIDTH
    devices = []
    for number in range(min(total, MOST_DEVICES)):
        shard = picture.shard(number)
        held = [(shard, 1.0)] if is_source else shares.get(shard, [])
        place = ", ".join(f"{name}={at}" for name, at in picture.coordinate(number).items())
        origin = f"shard {shard}" if is_source else origin_text(held)
        x, y = EDGE + number % columns * (width + GAP), EDGE + number // columns * (HEIGHT + GAP)
        devices.append(Device(number, shard, place, origin, x, y, width, _pieces(held, x, width)))
    height = max(0, -(-len(devices) // columns) * (HEIGHT + GAP) - GAP)
    across = 2 * EDGE + columns * (width + GAP) - GAP
    return MeshPicture(tuple(devices), total, is_mesh, across, 2 * EDGE + height)


def _pieces(held: list[Share], x: float, wide: float) -> tuple[BoxPart, ...]:
    found = []
    for source, share in held:
        width = share * wide
        label = str(source) if width >= max(LETTERS_WIDTH, 7 * len(str(source)) + 2) else ""
        found.append(BoxPart(round(x, 2), round(width, 2), f"c{source % COLOURS}", label))
        x += width
    return tuple(found)


def origin_text(held: Sequence[Share]) -> str:
    """``50 % of shard 0, 50 % of shard 2``: the source of a device's bytes."""
    if not held:
        return "unknown"
    parts = [f"{percent_text(share)} from shard {source}" for source, share in held[:MOST_PARTS]]
    rest = len(held) - len(parts)
    return ", ".join(parts) + (f" and {rest:,} more" if rest else "")


def percent_text(share: float) -> str:
    """``50 %``, ``0.2 %``."""
    percent = 100 * share
    is_whole = percent >= 1 and abs(percent - round(percent)) < 0.05
    return f"{percent:.0f} %" if is_whole else f"{percent:.2g} %"


def resplit_text(plan: Mapping[str, Any]) -> str:
    """``34 of 48 tensors (9.50 MiB of 12.0 MiB) are split differently; the others keep their shards.``"""
    resplit, all_tensors = plan["resplit"], plan["totals"]["tensors"]
    if not resplit["tensors"]:
        return "Every tensor keeps the shards that it has in the source."
    sizes = f"{format_bytes(resplit['nbytes'])} of {format_bytes(resplit['of_nbytes'])}"
    if resplit["tensors"] == all_tensors:
        every = "The only tensor" if all_tensors == 1 else f"All {all_tensors:,} tensors"
        verb = "is" if all_tensors == 1 else "are"
        return f"{every} ({format_bytes(resplit['nbytes'])}) {verb} split differently."
    verb = "is" if resplit["tensors"] == 1 else "are"
    return (
        f"{resplit['tensors']:,} of {all_tensors:,} tensors ({sizes}) {verb} split differently; "
        "the others keep their shards."
    )


def reads_text(tensor: Mapping[str, Any], devices: int, is_mesh: bool) -> str:
    """``Each of 8 devices reads from 2 of the source's 8 shards.``

    Args:
        devices: of the target, or its shards if it has no mesh.
    """
    least, most = tensor["reads_from"]
    shards = math.prod(tensor["source_parts"])
    what = "device" if is_mesh else "shard"
    who = f"Each of {devices:,} {what}s reads" if devices > 1 else f"The only {what} reads"
    if most <= 1:
        if shards == 1:
            return f"{who} {'a part of ' if tensor['is_resplit'] else ''}the source's only shard."
        part = "a part of one" if tensor["is_resplit"] else "one"
        return f"{who} {part} of the source's {shards:,} shards."
    if most == shards and least == most:
        return f"{who} from all {shards:,} shards of the source."
    many = f"{most:,}" if least == most else f"{least:,} to {most:,}"
    return f"{who} from {many} of the source's {shards:,} shards."


_OF_JSON = frozenset({"shares", "link"})
"""Arguments of a plan's question that matter only for its answer over HTTP."""


@dataclass(frozen=True, slots=True)
class DrawnPlan:
    """A plan and its pictures; ``source`` and ``target`` are None if it has no tensors.

    Attributes:
        is_requested: True if the visitor chose the tensor that is drawn.
    """

    plan: dict[str, Any]
    source: MeshPicture | None
    target: MeshPicture | None
    is_requested: bool = False

    @property
    def chosen(self) -> Any:
        """The tensor that is drawn."""
        return self.plan["chosen"]

    @property
    def why_chosen(self) -> str:
        """The reason why this tensor is drawn; empty if the visitor chose it."""
        if self.is_requested:
            return ""
        moves = self.chosen["moved_bytes"] or self.chosen["is_resplit"]
        return "the tensor that moves most" if moves else "the largest tensor"

    @property
    def change(self) -> str:
        """A sentence about the changes of the plan."""
        return resplit_text(self.plan)

    @property
    def reads(self) -> str:
        """A sentence about the places from which the target's devices read the chosen tensor."""
        target = self.target
        return "" if target is None else reads_text(self.chosen, target.total, target.is_mesh)


async def planned(
    request: Request, serving: Services, caller: Caller, body: PlanRequest, tensor: str | None
) -> DrawnPlan:
    """Plans a conversion. Raises ProblemError if the conversion would be refused."""
    question = await serving.find(questions.plan, caller, body)
    arguments = {k: v for k, v in question.arguments.items() if k not in _OF_JSON}
    question = replace(question, command="picture", arguments={**arguments, "tensor": tensor})
    plan: dict[str, Any] = json.loads(await answer_to(request, serving, question))
    chosen = plan["chosen"]
    if chosen is None:
        return DrawnPlan(plan, None, None)
    is_requested = tensor == chosen["target"]
    return DrawnPlan(plan, drawn_side(chosen, "source"), drawn_side(chosen, "target"), is_requested)


def plan_of(serving: Services, conversion: Conversion, requested: TargetRequest) -> PlanRequest:
    """The plan request of an accepted conversion, with the layout and the map of its time; the target may exist now.

    Raises ProblemError if one was never stored.
    """
    members = requested.model_dump() | {"overwrite": True, "restart": False}
    as_of = conversion.created_at.timestamp()
    for kind in KINDS:
        with for_field(f"/{kind.noun}"):
            members[kind.noun] = content_then(serving.database, kind, members[kind.noun], as_of)
    shared = ("source", "max_memory", "workers")
    members |= {name: getattr(conversion.request, name) for name in shared}
    return PlanRequest.model_validate(members)
