"""Routes that start, read, list, cancel, retry and delete conversions."""

from __future__ import annotations

from typing import Annotated

from anyio.to_thread import run_sync
from fastapi import APIRouter, Body, Depends, Header, Query, Request, Response

from reshard_server.api.caller import Converting, Reading, Serving, looked_up
from reshard_server.api.openapi.description import problems
from reshard_server.api.openapi.examples import REQUESTS, conversion_response
from reshard_server.api.read_mask import MaskedRoute, mask_of, wants
from reshard_server.auth.tokens import Caller
from reshard_server.db.conversions import conversions
from reshard_server.db.conversions.conversions import Filters
from reshard_server.errors.problems import (
    BAD_LAYOUT,
    BAD_PLAN,
    CONFLICT,
    INVALID,
    KEY_REUSED,
    UNAVAILABLE,
)
from reshard_server.resources import conversions as resource
from reshard_server.resources.conversions import ConversionId
from reshard_server.resources.resource import listed_token
from reshard_server.schemas.conversion import (
    Conversion,
    ConversionPage,
    ConversionRequest,
)
from reshard_server.schemas.listing import ConversionQuery

ROUTER = APIRouter(prefix="/v1/conversions", tags=["conversions"], route_class=MaskedRoute)

POLL_AFTER = "1"
"""Seconds to wait before polling again."""

Key = Annotated[
    str | None,
    Header(
        alias="Idempotency-Key",
        description="The same key with the same request returns the same conversion.",
        pattern="^[!-~]{1,255}$",
    ),
]


async def _to_read(
    id: ConversionId,  # noqa: A002  the name in the path
    request: Request,
    serving: Serving,
    caller: Reading,
) -> Conversion:
    with_result = wants(mask_of(request), "result")
    return await looked_up(serving, resource.visible, serving, caller, id, with_result)


async def _to_change(
    id: ConversionId,  # noqa: A002  the name in the path
    serving: Serving,
    caller: Converting,
) -> Conversion:
    return await looked_up(serving, resource.visible, serving, caller, id)


Readable = Annotated[Conversion, Depends(_to_read)]
Changeable = Annotated[Conversion, Depends(_to_change)]


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
    """Queues a conversion, which is carried out even if this server ends.

    Everything that can be checked without reading the checkpoint is checked now.
    """
    made = await resource.create(serving, caller, body, idempotency_key)
    point_to(response, made)
    return made


@ROUTER.get("")
async def list_conversions(
    query: Annotated[ConversionQuery, Query()], serving: Serving, caller: Reading
) -> ConversionPage:
    """Lists this token's conversions and deltas, newest first; an admin sees those of all tokens."""
    filters = filters_of(query, caller)
    return await looked_up(
        serving, conversions.page, serving.database, filters, query.page_size, query.page_token
    )


def filters_of(query: ConversionQuery, caller: Caller, is_delta: bool | None = None) -> Filters:
    """The filters of a listing; ``is_delta`` as of ``Filters``."""
    labels = (label.partition("=") for label in query.label)
    return Filters(
        token=listed_token(caller),
        states=tuple(query.state),
        source=query.source,
        schedule=query.schedule,
        labels=tuple((key, value) for key, _, value in labels),
        created_after=query.created_after.timestamp() if query.created_after else None,
        created_before=query.created_before.timestamp() if query.created_before else None,
        is_delta=is_delta,
    )


@ROUTER.get(
    "/{id}",
    response_model=Conversion,
    responses={
        200: conversion_response("Its current state.", "ETag", "Retry-After"),
        304: {"description": "It has not changed since this ETag."},
    },
)
async def get_conversion(
    found: Readable,
    response: Response,
    if_none_match: Annotated[str | None, Header(description="A known ETag.")] = None,
) -> Conversion | Response:
    """Returns a conversion; with ``If-None-Match`` only if it has changed."""
    tag = f'"{found.id}-{found.revision}"'
    if tag in (known.strip().removeprefix("W/") for known in (if_none_match or "").split(",")):
        return Response(status_code=304, headers={"ETag": tag})
    response.headers["ETag"] = tag
    if not found.done:
        response.headers["Retry-After"] = POLL_AFTER
        return found
    # A report of 30,000 tensors takes a while to serialize.
    text = await run_sync(found.model_dump_json)
    return Response(text, headers={"ETag": tag}, media_type="application/json")


@ROUTER.post(
    "/{id}:cancel",
    responses={200: conversion_response("It is cancelled, or stopping."), **problems(CONFLICT)},
)
def cancel_conversion(found: Changeable, serving: Serving) -> Conversion:
    """Cancels a conversion: at once if it waits, within seconds if it runs. The target does not change."""
    return resource.cancel(serving, found)


@ROUTER.post(
    "/{id}:retry",
    status_code=202,
    responses={
        202: conversion_response("It is queued again.", "Location", "Retry-After"),
        **problems(CONFLICT, UNAVAILABLE),
    },
)
def retry_conversion(found: Changeable, serving: Serving, response: Response) -> Conversion:
    """Queues a failed or cancelled conversion again; it resumes where it stopped."""
    now = resource.retry(serving, found)
    point_to(response, now)
    return now


@ROUTER.delete("/{id}", status_code=204, responses=problems(CONFLICT))
def delete_conversion(found: Changeable, serving: Serving) -> None:
    """Deletes the record of an ended conversion; its outputs stay."""
    resource.delete(serving, found)


def point_to(response: Response, conversion: Conversion) -> None:
    """Says in the response where the conversion's state is, and when to ask again."""
    response.headers["Location"] = f"/v1/conversions/{conversion.id}"
    response.headers["Retry-After"] = POLL_AFTER
