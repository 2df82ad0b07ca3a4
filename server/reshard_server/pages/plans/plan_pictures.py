"""A plan as a page shows it: asked of the library, and drawn."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Any

from anyio.to_thread import run_sync
from fastapi import Request

from reshard_server.api.answer_or_stream import answer_to
from reshard_server.api.plans import plan_question
from reshard_server.auth.tokens import Caller
from reshard_server.db.layouts.layouts import stored_layout
from reshard_server.jobs.accept import about
from reshard_server.pages.plans.mesh_picture import MeshPicture, source_picture, target_picture
from reshard_server.pages.plans.plan_wording import reads_text, resplit_text
from reshard_server.schemas.conversion import Conversion, Goal, PlanRequest
from reshard_server.services import Services


@dataclass(frozen=True, slots=True)
class Planned:
    """A plan, and its picture; ``source`` and ``target`` are None where it has no tensor.

    Attributes:
        is_asked: whether the tensor that is drawn was asked for.
    """

    plan: dict[str, Any]
    source: MeshPicture | None
    target: MeshPicture | None
    is_asked: bool = False

    @property
    def chosen(self) -> Any:
        """The tensor that is drawn."""
        return self.plan["chosen"]

    @property
    def why_chosen(self) -> str:
        """Why this tensor is drawn; empty where it was asked for."""
        if self.is_asked:
            return ""
        moves = self.chosen["moved_bytes"] or self.chosen["is_resplit"]
        return "the tensor that moves most" if moves else "the largest tensor"

    @property
    def change(self) -> str:
        """What the plan changes, in a sentence."""
        return resplit_text(self.plan)

    @property
    def reads(self) -> str:
        """Where the target's devices read the chosen tensor from, in a sentence."""
        target = self.target
        return "" if target is None else reads_text(self.chosen, target.count, target.is_mesh)


async def planned(
    request: Request, serving: Services, caller: Caller, body: PlanRequest, tensor: str | None
) -> Planned:
    """The plan of a conversion; ProblemError for what it would be refused for."""
    question = await run_sync(plan_question, serving, caller, body)
    arguments = {k: v for k, v in question.arguments.items() if k != "shares"}
    question = replace(question, command="picture", arguments={**arguments, "tensor": tensor})
    plan: dict[str, Any] = json.loads(await answer_to(request, serving, question))
    chosen = plan["chosen"]
    if chosen is None:
        return Planned(plan, None, None)
    is_asked = tensor == chosen["target"]
    return Planned(plan, source_picture(chosen), target_picture(chosen), is_asked)


def plan_of(serving: Services, conversion: Conversion, goal: Goal) -> PlanRequest:
    """What is planned for a conversion that was accepted: with the layout of then, whatever is there now.

    ProblemError where the layout was never stored.
    """
    members = goal.model_dump() | {"overwrite": True, "restart": False}
    if isinstance(goal.layout, str):
        with about("/layout"):
            as_of = conversion.created_at.timestamp()
            members["layout"] = stored_layout(serving.database, goal.layout, as_of)
    wanted = conversion.request
    return PlanRequest.model_validate(
        {
            **members,
            "source": wanted.source,
            "max_memory": wanted.max_memory,
            "workers": wanted.workers,
        }
    )
