"""A plan for a page: requested from the library, and drawn."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from anyio.to_thread import run_sync
from fastapi import Request

from reshard.geometry.sizes import format_bytes
from reshard_server.api.answers import answer_to
from reshard_server.auth.tokens import Caller
from reshard_server.db.stored.kinds import KINDS, content_then
from reshard_server.jobs.check_request import for_field
from reshard_server.pages.mesh_picture import MeshPicture, source_picture, target_picture
from reshard_server.resources import questions
from reshard_server.schemas.conversion import Conversion, PlanRequest, TargetRequest
from reshard_server.services import Services


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
        return "" if target is None else reads_text(self.chosen, target.count, target.is_mesh)


async def planned(
    request: Request, serving: Services, caller: Caller, body: PlanRequest, tensor: str | None
) -> DrawnPlan:
    """Plans a conversion. Raises ProblemError if the conversion would be refused."""
    question = await run_sync(questions.plan, serving, caller, body, limiter=serving.finders)
    arguments = {k: v for k, v in question.arguments.items() if k not in _OF_JSON}
    question = replace(question, command="picture", arguments={**arguments, "tensor": tensor})
    plan: dict[str, Any] = json.loads(await answer_to(request, serving, question))
    chosen = plan["chosen"]
    if chosen is None:
        return DrawnPlan(plan, None, None)
    is_requested = tensor == chosen["target"]
    return DrawnPlan(plan, source_picture(chosen), target_picture(chosen), is_requested)


def plan_of(serving: Services, conversion: Conversion, requested: TargetRequest) -> PlanRequest:
    """The plan request of an accepted conversion, with the layout and the map of its time; the target may exist now.

    Raises ProblemError if one was never stored.
    """
    members = requested.model_dump() | {"overwrite": True, "restart": False}
    as_of = conversion.created_at.timestamp()
    for kind in KINDS:
        with for_field(f"/{kind.noun}"):
            members[kind.noun] = content_then(serving.database, kind, members[kind.noun], as_of)
    request = conversion.request
    return PlanRequest.model_validate(
        {
            **members,
            "source": request.source,
            "max_memory": request.max_memory,
            "workers": request.workers,
        }
    )
