"""Plans: what a conversion would do and cost, and whether it would be refused."""

from __future__ import annotations

from typing import Annotated, Any

from anyio.to_thread import run_sync
from fastapi import APIRouter, Body, Request, Response

from reshard_server.api.answer_or_stream import answered
from reshard_server.api.caller import Reading, Serving
from reshard_server.api.openapi.description import problems
from reshard_server.api.openapi.examples import PLANS
from reshard_server.api.read_mask import MaskedRoute
from reshard_server.auth.tokens import Caller
from reshard_server.errors.problems import (
    BAD_CHECKPOINT,
    BAD_LAYOUT,
    BAD_PLAN,
    BUDGET,
    NO_CHECKPOINT,
    STORAGE,
    TARGET_EXISTS,
    UNAVAILABLE,
)
from reshard_server.jobs.accept import about, check_conversion, check_limits, content_of
from reshard_server.jobs.child_request import data_bytes
from reshard_server.jobs.choose_step import with_choice
from reshard_server.queries.ask import Question
from reshard_server.schemas.checkpoint import JointPlanAnswer, PlanAnswer
from reshard_server.schemas.conversion import (
    AnyPlanRequest,
    Goal,
    JointPlanRequest,
    goals,
)
from reshard_server.services import Services

ROUTER = APIRouter(prefix="/v1/plans", tags=["plans"], route_class=MaskedRoute)

_OF_THE_RUN = {"restart", "verify"}
"""Members of a target that a plan over HTTP does not depend on."""


@ROUTER.post(
    "",
    response_model=PlanAnswer | JointPlanAnswer,
    responses=problems(
        BAD_LAYOUT, BAD_PLAN, BUDGET, NO_CHECKPOINT, BAD_CHECKPOINT, STORAGE, TARGET_EXISTS, UNAVAILABLE
    ),
)  # fmt: skip
async def make_plan(
    body: Annotated[AnyPlanRequest, Body(openapi_examples=PLANS)],
    request: Request,
    serving: Serving,
    caller: Reading,
) -> Response:
    """What a conversion with these words would do and cost; reads metadata, and moves nothing.

    Refuses what a conversion would be refused for. Where nothing fits ``max_memory``, the problem tells the
    smallest that works. Needs a token that may write to the target's root, as the conversion will. Of several
    targets it tells each one's plan, and what is read for all of them.
    """
    question = await run_sync(plan_question, serving, caller, body)
    return await answered(request, serving, question)


def plan_question(serving: Services, caller: Caller, body: AnyPlanRequest) -> Question:
    """What is asked of the library; ProblemError for what a conversion would be refused for."""
    body = with_choice(serving.roots, caller, body)
    check_conversion(serving, caller, body)
    with about("/source"):
        source = serving.roots.existing(caller, body.source)
    limits = check_limits(serving, body.max_memory, body.workers)
    arguments: dict[str, Any] = {
        "source": str(source),
        "max_memory": limits.max_memory,
        "workers": limits.workers,
        "shares": body.shares,
    }
    targets = [_target(serving, caller, goal) for goal in goals(body)]
    memory = data_bytes(limits.max_memory, limits.workers)
    paths = (body.source, *(goal.target for goal in goals(body)))
    if isinstance(body, JointPlanRequest):
        told = {"source": body.source}
        joint = {**arguments, "targets": targets}
        return Question("plans", joint, memory, told=told, paths=paths)
    told = {"source": body.source, "target": body.target}
    return Question("plan", {**arguments, **targets[0]}, memory, told=told, paths=paths)


def _target(serving: Services, caller: Caller, goal: Goal) -> dict[str, Any]:
    return {
        **goal.model_dump(mode="json", exclude={"target", "layout", *_OF_THE_RUN}),
        "target": str(serving.roots.writable(caller, goal.target)),
        "layout": content_of(serving, goal.layout),
    }
