"""Plans: what a conversion would do and cost, and whether it would be refused."""

from __future__ import annotations

from typing import Annotated, Any

from anyio.to_thread import run_sync
from fastapi import APIRouter, Body, Request, Response

from reshard_server.access.tokens import Caller
from reshard_server.models.checkpoint import PlanAnswer
from reshard_server.models.conversion import PlanRequest
from reshard_server.problems import (
    BAD_CHECKPOINT,
    BAD_LAYOUT,
    BAD_PLAN,
    BUDGET,
    NO_CHECKPOINT,
    STORAGE,
    TARGET_EXISTS,
    UNAVAILABLE,
)
from reshard_server.routes.asking import Reading, Serving
from reshard_server.routes.description import problems
from reshard_server.routes.examples import PLANS
from reshard_server.routes.questions import answered
from reshard_server.services import Services
from reshard_server.work.accepting import about, check_conversion, check_limits, content_of
from reshard_server.work.questions import Question
from reshard_server.work.request import data_bytes

ROUTER = APIRouter(prefix="/v1/plans", tags=["plans"])

_NO_ARGUMENTS = frozenset({"source", "target", "layout", "max_memory", "workers", "restart", "verify"})  # fmt: skip


@ROUTER.post(
    "",
    response_model=PlanAnswer,
    responses=problems(
        BAD_LAYOUT, BAD_PLAN, BUDGET, NO_CHECKPOINT, BAD_CHECKPOINT, STORAGE, TARGET_EXISTS, UNAVAILABLE
    ),
)  # fmt: skip
async def make_plan(
    body: Annotated[PlanRequest, Body(openapi_examples=PLANS)],
    request: Request,
    serving: Serving,
    caller: Reading,
) -> Response:
    """What a conversion with these words would do and cost; reads metadata, and moves nothing.

    Refuses what a conversion would be refused for. Where nothing fits ``max_memory``, the problem tells the
    smallest that works. Needs a token that may write to the target's root, as the conversion will.
    """
    question = await run_sync(plan_question, serving, caller, body)
    return await answered(request, serving, question)


def plan_question(serving: Services, caller: Caller, body: PlanRequest) -> Question:
    """What is asked of the library; ProblemError for what a conversion would be refused for."""
    check_conversion(serving, caller, body)
    with about("/source"):
        source = serving.roots.existing(caller, body.source)
    limits = check_limits(serving, body.max_memory, body.workers)
    arguments: dict[str, Any] = {
        **body.model_dump(mode="json", exclude=set(_NO_ARGUMENTS)),
        "src": str(source),
        "dst": str(serving.roots.writable(caller, body.target)),
        "layout": content_of(serving, body.layout),
        "max_memory": limits.max_memory,
        "workers": limits.workers,
    }
    return Question(
        "plan",
        arguments,
        data_bytes(limits.max_memory, limits.workers),
        told={"source": body.source, "target": body.target},
    )
