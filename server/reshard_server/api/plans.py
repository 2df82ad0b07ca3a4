"""The route that plans a conversion: what it would do and cost, and whether it would be refused."""

from __future__ import annotations

from typing import Annotated, Any

from anyio.to_thread import run_sync
from fastapi import APIRouter, Body, Request, Response

from reshard_server.api.answer_or_stream import answered
from reshard_server.api.caller import Reading, Serving
from reshard_server.api.openapi.answers import MULTI_PLAN, PLAN
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
    OF_A_BUCKET,
    STORAGE,
    TARGET_EXISTS,
    UNAVAILABLE,
)
from reshard_server.jobs.check_request import check_conversion, check_limits, content_of, for_field
from reshard_server.jobs.child_request import data_bytes
from reshard_server.jobs.choose_step import resolve_step
from reshard_server.queries.ask import Question
from reshard_server.schemas.conversion import (
    AnyPlanRequest,
    MultiPlanRequest,
    TargetRequest,
    targets_of,
)
from reshard_server.services import Services

ROUTER = APIRouter(prefix="/v1/plans", tags=["plans"], route_class=MaskedRoute)

_LINK = {"latency_s", "bytes_per_s"}
"""Members of a plan's request that say how fast buckets answer."""

_OF_THE_RUN = {"restart", "verify"}
"""Members of a target that a plan over HTTP does not depend on."""


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
    question = await run_sync(plan_question, serving, caller, body, limiter=serving.finders)
    return await answered(request, serving, question)


def plan_question(serving: Services, caller: Caller, body: AnyPlanRequest) -> Question:
    """The question for the library. Raises ProblemError if a conversion would be refused."""
    body = resolve_step(serving.roots, caller, body)
    check_conversion(serving, caller, body)
    with for_field("/source"):
        source = serving.roots.existing(caller, body.source)
    limits = check_limits(serving, body.max_memory, body.workers)
    arguments: dict[str, Any] = {
        "source": str(source),
        "unlisted": body.unlisted,
        "max_memory": limits.max_memory,
        "workers": limits.workers,
        "shares": body.shares,
        "link": body.model_dump(include=_LINK, exclude_none=True),
    }
    targets = [_target(serving, caller, requested) for requested in targets_of(body)]
    memory = data_bytes(limits.max_memory, limits.workers)
    paths = (body.source, *(requested.target for requested in targets_of(body)))
    if isinstance(body, MultiPlanRequest):
        overrides = {"source": body.source}
        several = {**arguments, "targets": targets}
        return Question("plans", several, memory, overrides=overrides, paths=paths)
    overrides = {"source": body.source, "target": body.target}
    return Question("plan", {**arguments, **targets[0]}, memory, overrides=overrides, paths=paths)


def _target(serving: Services, caller: Caller, requested: TargetRequest) -> dict[str, Any]:
    return {
        **requested.model_dump(mode="json", exclude={"target", "layout", *_OF_THE_RUN}),
        "target": str(serving.roots.writable(caller, requested.target)),
        "layout": content_of(serving, requested.layout),
    }
