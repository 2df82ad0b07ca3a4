"""The route that plans a conversion: what it would do and cost, and whether it would be refused."""

from __future__ import annotations

from typing import Annotated

from anyio.to_thread import run_sync
from fastapi import APIRouter, Body, Request, Response

from reshard_server.api.answer_or_stream import answered
from reshard_server.api.caller import Reading, Serving
from reshard_server.api.openapi.answers import MULTI_PLAN, PLAN
from reshard_server.api.openapi.description import problems
from reshard_server.api.openapi.examples import PLANS
from reshard_server.api.read_mask import MaskedRoute
from reshard_server.errors.problems import (
    BAD_CHECKPOINT,
    BAD_LAYOUT,
    BAD_PLAN,
    BUDGET,
    NO_CHECKPOINT,
    OF_A_BUCKET,
    STORAGE,
    TARGET_EXISTS,
    UNAVAILABLE,
)
from reshard_server.resources import questions
from reshard_server.schemas.conversion import (
    AnyPlanRequest,
)

ROUTER = APIRouter(prefix="/v1/plans", tags=["plans"], route_class=MaskedRoute)


@ROUTER.post(
    "",
    response_model=PLAN | MULTI_PLAN,
    responses=problems(
        BAD_LAYOUT, BAD_PLAN, BUDGET, NO_CHECKPOINT, BAD_CHECKPOINT, STORAGE, TARGET_EXISTS, UNAVAILABLE, *OF_A_BUCKET
    ),
)  # fmt: skip
async def make_plan(
    body: Annotated[AnyPlanRequest, Body(openapi_examples=PLANS)],
    request: Request,
    serving: Serving,
    caller: Reading,
) -> Response:
    """Plans a conversion: what it would do and cost. Reads metadata only, and moves no data.

    Refuses every request that a conversion would refuse. If no plan fits ``max_memory``, the problem names the smallest
    value that works. Needs a token that may write to the target's root, as the conversion does. For several targets the
    answer has the plan of each, and the bytes that are read for all of them.
    """
    question = await run_sync(questions.plan, serving, caller, body, limiter=serving.finders)
    return await answered(request, serving, question)
