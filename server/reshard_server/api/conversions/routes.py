"""Conversions: asked for, looked at, listed, cancelled, tried again, forgotten."""

from __future__ import annotations

from typing import Annotated

from anyio.to_thread import run_sync
from fastapi import APIRouter, Body, Header, Query, Response

from reshard_server.api.caller import Converting, Reading, Serving, looked_up
from reshard_server.api.conversions.get_or_404 import Changeable, Readable, gone
from reshard_server.api.openapi.description import problems
from reshard_server.api.openapi.examples import REQUESTS, conversion_response
from reshard_server.api.read_mask import MaskedRoute
from reshard_server.db.conversions import conversions
from reshard_server.db.conversions.conversions import Filters
from reshard_server.db.conversions.idempotency import Asked
from reshard_server.errors.problems import (
    BAD_LAYOUT,
    BAD_PLAN,
    CONFLICT,
    INVALID,
    KEY_REUSED,
    UNAVAILABLE,
    ProblemError,
)
from reshard_server.jobs.accept import check_conversion
from reshard_server.jobs.choose_step import choose
from reshard_server.observability.logs import ABOUT
from reshard_server.schemas.conversion import Conversion, ConversionPage, ConversionRequest, goals
from reshard_server.schemas.listing import ConversionQuery

ROUTER = APIRouter(prefix="/v1/conversions", tags=["conversions"], route_class=MaskedRoute)

POLL_AFTER = "1"
"""Seconds after which looking again makes sense."""

Key = Annotated[
    str | None,
    Header(
        alias="Idempotency-Key",
        description="Sent again with the same request it leads to the same conversion.",
        pattern="^[!-~]{1,255}$",
    ),
]


@ROUTER.post(
    "",
    status_code=202,
    responses={
        202: conversion_response("It is queued.", "Location", "Retry-After"),
        **problems(INVALID, KEY_REUSED, BAD_LAYOUT, BAD_PLAN, UNAVAILABLE),
    },
)
async def create_conversion(
    body: Annotated[ConversionRequest, Body(openapi_examples=REQUESTS)],
    serving: Serving,
    caller: Converting,
    response: Response,
    idempotency_key: Key = None,
) -> Conversion:
    """Asks for a conversion, which is carried out whatever becomes of this server.

    Everything that can be checked without reading the checkpoint is checked now.
    """
    ABOUT.get().aims_at(*(goal.target for goal in goals(body)))
    serving.drain.refuse_new()
    chosen = await choose(serving.checkers, serving.roots, caller, body)
    await run_sync(check_conversion, serving, caller, chosen, limiter=serving.checkers)
    asked = Asked(caller.name, chosen, idempotency_key, sent=body)
    made, is_new = await serving.together.create(asked)
    ABOUT.get().found(made.id)
    if is_new:
        serving.durable.enqueue(made.id, caller.name, made.priority)
    _point_to(response, made)
    return made


@ROUTER.get("")
async def list_conversions(
    query: Annotated[ConversionQuery, Query()], serving: Serving, caller: Reading
) -> ConversionPage:
    """Conversions of this token, newest first; an admin sees those of every token."""
    labels = (label.partition("=") for label in query.label)
    filters = Filters(
        token=None if caller.is_admin else caller.name,
        states=tuple(query.state),
        source=query.source,
        schedule=query.schedule,
        labels=tuple((key, value) for key, _, value in labels),
        created_after=query.created_after.timestamp() if query.created_after else None,
        created_before=query.created_before.timestamp() if query.created_before else None,
    )
    return await looked_up(
        serving,
        conversions.page,
        serving.database,
        filters,
        query.page_size,
        query.page_token,
    )


@ROUTER.get(
    "/{id}",
    response_model=Conversion,
    responses={
        200: conversion_response("As it stands.", "ETag", "Retry-After"),
        304: {"description": "It is still as the ETag says."},
    },
)
async def get_conversion(
    found: Readable,
    response: Response,
    if_none_match: Annotated[str | None, Header(description="An ETag that is known.")] = None,
) -> Conversion | Response:
    """A conversion as it stands; with ``If-None-Match`` only where it changed."""
    tag = f'"{found.id}-{found.revision}"'
    if tag in (known.strip().removeprefix("W/") for known in (if_none_match or "").split(",")):
        return Response(status_code=304, headers={"ETag": tag})
    response.headers["ETag"] = tag
    if not found.done:
        response.headers["Retry-After"] = POLL_AFTER
        return found
    # A report of 30,000 tensors takes a while to write down.
    text = await run_sync(found.model_dump_json)
    return Response(text, headers={"ETag": tag}, media_type="application/json")


@ROUTER.post(
    "/{id}:cancel",
    responses={200: conversion_response("It is cancelled, or told to stop."), **problems(CONFLICT)},
)
def cancel_conversion(found: Changeable, serving: Serving) -> Conversion:
    """Stops a conversion: one that waits at once, one that runs within seconds. The target stays as it was."""
    now = conversions.request_cancel(serving.database, found.id)
    if now is None:
        raise gone(found.id)
    if now.state in ("succeeded", "failed"):
        raise ProblemError(
            CONFLICT, f"conversion {now.id} has {now.state} already; there is nothing to cancel"
        )
    return now


@ROUTER.post(
    "/{id}:retry",
    status_code=202,
    responses={
        202: conversion_response("It is queued again.", "Location", "Retry-After"),
        **problems(CONFLICT, UNAVAILABLE),
    },
)
def retry_conversion(found: Changeable, serving: Serving, response: Response) -> Conversion:
    """Queues a failed or cancelled conversion again; what was done of it is kept."""
    serving.drain.refuse_new()
    now = conversions.requeue(serving.database, found.id)
    if now is None:
        raise ProblemError(
            CONFLICT,
            f"conversion {found.id} is {found.state}; only failed and cancelled ones are tried again",
        )
    serving.durable.enqueue(now.id, now.created_by, now.priority)
    _point_to(response, now)
    return now


@ROUTER.delete("/{id}", status_code=204, responses=problems(CONFLICT))
def delete_conversion(found: Changeable, serving: Serving) -> None:
    """Forgets a conversion that has ended; what it wrote stays."""
    if not conversions.delete(serving.database, found.id):
        first = "" if found.state == "cancelling" else "cancel it, and "
        raise ProblemError(
            CONFLICT, f"conversion {found.id} is {found.state}; {first}delete it once it has ended"
        )


def _point_to(response: Response, conversion: Conversion) -> None:
    response.headers["Location"] = f"/v1/conversions/{conversion.id}"
    response.headers["Retry-After"] = POLL_AFTER
