"""The page of a conversion's plan: a tensor on both meshes, and the source of the target's bytes."""

from __future__ import annotations

from typing import Annotated

from anyio.to_thread import run_sync
from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from reshard_server.api.caller import Serving
from reshard_server.errors.problems import NOT_FOUND, ProblemError
from reshard_server.pages.conversions.conversion_pages import Seen
from reshard_server.pages.plans.plan_pictures import plan_of, planned
from reshard_server.pages.rendering import page
from reshard_server.pages.visitor import Visiting
from reshard_server.schemas.conversion import targets_of

ROUTER = APIRouter(prefix="/conversions", include_in_schema=False)


@ROUTER.get("/{id}/plan")
async def show_plan(
    found: Seen,
    visitor: Visiting,
    request: Request,
    serving: Serving,
    target: Annotated[int, Query(ge=0, le=99)] = 0,
    tensor: Annotated[str | None, Query(max_length=4096)] = None,
) -> Response:
    """Plans the conversion again from the present source; if that fails, the page says why."""
    requested = targets_of(found.request)
    if target >= len(requested):
        raise ProblemError(
            NOT_FOUND,
            f"the conversion has {len(requested)} targets and no target {target}; targets count from 0",
            "target",
        )
    plan, problem = None, None
    try:
        body = await run_sync(plan_of, serving, found, requested[target])
        plan = await planned(request, serving, visitor.caller, body, tensor)
    except ProblemError as refused:
        problem = refused
    return page(
        "conversions/conversion_plan.html",
        visitor,
        200 if problem is None else problem.kind.status,
        conversion=found,
        target=requested[target],
        number=target,
        planned=plan,
        problem=problem,
    )
