"""Routes of conversions and deltas: started, read, listed, watched, cancelled, retried, deleted.

A delta is a conversion of its own form: what else is done with it is at /v1/conversions.

Each event of a watched conversion contains it as ``GET`` returns it; the event's id is its revision. Changes in quick succession
become one event. The last event is ``end``; then the stream ends.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import Annotated, Any

from anyio.to_thread import run_sync
from fastapi import APIRouter, Body, Depends, Header, Path, Query, Request, Response

from reshard_server.api.answers import (
    NAME,
    SILENCE_SECONDS,
    STILL_HERE,
    EventStream,
    MaskedRoute,
    mask_of,
    narrowed,
    wants,
)
from reshard_server.api.caller import Converting, Reading, Serving, looked_up
from reshard_server.api.openapi.description import problems
from reshard_server.api.openapi.examples import (
    DELIVERY,
    DELTAS,
    REQUESTS,
    conversion_response,
    delivery_response,
    delta_response,
)
from reshard_server.auth.limits import RETRY_AFTER
from reshard_server.auth.tokens import Caller
from reshard_server.db.conversions import conversions
from reshard_server.db.conversions.conversions import Filters, Watcher
from reshard_server.db.deliveries import of_conversion
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
from reshard_server.schemas.base import MEANT
from reshard_server.schemas.conversion import (
    Conversion,
    ConversionPage,
    ConversionRequest,
    OneDelta,
    result_url,
    short_reports,
)
from reshard_server.schemas.conversion_query import ConversionQuery
from reshard_server.schemas.delivery import Delivery, DeliveryList
from reshard_server.services import Services

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
    return await _page(serving, caller, query)


async def _page(
    serving: Services, caller: Caller, query: ConversionQuery, is_delta: bool | None = None
) -> ConversionPage:
    """A page of a listing; ``is_delta`` as of ``Filters``."""
    labels = (label.partition("=") for label in query.label)
    filters = Filters(
        token=listed_token(caller),
        states=tuple(query.state),
        source=query.source,
        schedule=query.schedule,
        labels=tuple((key, value) for key, _, value in labels),
        created_after=query.created_after.timestamp() if query.created_after else None,
        created_before=query.created_before.timestamp() if query.created_before else None,
        is_delta=is_delta,
    )
    return await looked_up(
        serving, conversions.page, serving.database, filters, query.page_size, query.page_token
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


@ROUTER.get("/{id}/deliveries")
def list_deliveries(
    id: ConversionId,  # noqa: A002  the name in the path
    serving: Serving,
    caller: Reading,
) -> DeliveryList:
    """Lists the deliveries to the URLs of ``notify``, newest first; the newest 200 are kept."""
    found = resource.visible(serving, caller, id, with_result=False)
    return DeliveryList(deliveries=of_conversion(serving.database, found.id))


@ROUTER.post(
    "/{id}/deliveries/{delivery}:resend",
    status_code=202,
    responses={202: delivery_response("It is due now."), **problems(INVALID)},
)
def resend_delivery(
    delivery: Annotated[str, Path(max_length=128, examples=[DELIVERY["id"]])],
    found: Changeable,
    serving: Serving,
) -> Delivery:
    """Sends a delivery again, whatever its state: the same event, with the same id."""
    return resource.resend(serving, found, delivery)


def point_to(response: Response, conversion: Conversion) -> None:
    """Says in the response where the conversion's state is, and when to ask again."""
    response.headers["Location"] = f"/v1/conversions/{conversion.id}"
    response.headers["Retry-After"] = POLL_AFTER


DELTAS_ROUTER = APIRouter(prefix="/v1/deltas", tags=["deltas"], route_class=MaskedRoute)


@DELTAS_ROUTER.post(
    "",
    status_code=202,
    responses={
        202: delta_response("It is queued.", "Location", "Retry-After"),
        **problems(INVALID, KEY_REUSED, BAD_LAYOUT, BAD_PLAN, UNAVAILABLE),
    },
)
async def create_delta(
    body: Annotated[OneDelta, Body(openapi_examples=DELTAS)],
    serving: Serving,
    caller: Converting,
    response: Response,
    idempotency_key: Key = None,
) -> Conversion:
    """Queues a delta, which is made even if this server ends: the version appears whole or not at all.

    Everything that can be checked without reading the checkpoints is checked now. The answer is a conversion: ``Location`` says where its
    state is, and it is watched, cancelled, retried and deleted there.
    """
    made = await resource.create(serving, caller, body, idempotency_key)
    point_to(response, made)
    return made


@DELTAS_ROUTER.get("")
async def list_deltas(
    query: Annotated[ConversionQuery, Query()], serving: Serving, caller: Reading
) -> ConversionPage:
    """Lists this token's deltas, newest first, as conversions; an admin sees those of all tokens."""
    return await _page(serving, caller, query, is_delta=True)


EVENTS_ROUTER = APIRouter(prefix="/v1/conversions", tags=["conversions"], route_class=MaskedRoute)

RECONNECT_MILLISECONDS = 2000

LARGEST_REVISION = 2**63 - 1
"""The records' largest revision."""


_EVENTS: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "Events `conversion`, `end` and, if the server ends, `draining`.",
        "content": {
            "text/event-stream": {
                "schema": {
                    "type": "string",
                    "description": "Events `conversion`, `end` and `draining`; `id` is the conversion's revision, and `data` a Conversion as "
                    "JSON.",
                    MEANT: {"$ref": "#/components/schemas/Conversion"},
                }
            }
        },
    },
    204: {"description": "It has ended, and the client has the last event: do not reconnect."},
}


@EVENTS_ROUTER.get("/{id}/events", status_code=200, response_class=EventStream, responses=_EVENTS)
async def watch_conversion(
    found: Readable,
    request: Request,
    serving: Serving,
    caller: Reading,
    last_event_id: Annotated[
        int | None,
        Header(
            ge=0, le=LARGEST_REVISION, description="Id of the last event that the client received."
        ),
    ] = None,
) -> Response:
    """Sends a conversion's changes until it ends.

    The first event has its current state, unless ``Last-Event-ID`` is its revision. Reports have the number of their
    tensors in place of ``tensors``. These are at ``result_url``; ``fields=*`` includes them in the events.
    """
    if found.done and last_event_id == found.revision:
        return Response(status_code=204)
    stream = serving.streams.take(caller.name)
    select = partial(narrowed, mask=mask_of(request)) if NAME in request.query_params else None
    return EventStream(_events(serving, found, caller, last_event_id, select), stream)


Select = Callable[[dict[str, Any]], dict[str, Any]]
"""Selects the members of a conversion's document for an event."""


async def _events(
    serving: Services, first: Conversion, caller: Caller, seen: int | None, select: Select | None
) -> AsyncIterator[str]:
    yield f"retry: {RECONNECT_MILLISECONDS}\n\n"
    first = first.model_copy(update={"parts": None})  # no event has the parts
    if first.revision != seen:
        yield await asyncio.to_thread(_event, first, select)
    if first.done:
        return
    with serving.feed.watching(first.id, first.revision) as watcher:
        while not serving.drain.started.is_set():
            is_woken = await _woken(watcher, serving.drain.started)
            if serving.tokens.named(caller.name) is None:
                return
            if not is_woken:
                yield STILL_HERE
            elif watcher.wake.is_set():
                watcher.wake.clear()
                newest = watcher.newest
                if newest is None:
                    return
                yield await asyncio.to_thread(_event, newest, select)
                if newest.done:
                    return
    yield f'event: draining\ndata: {{"retry_after": {RETRY_AFTER}}}\n\n'


async def _woken(watcher: Watcher, draining: asyncio.Event) -> bool:
    """Waits for a change or the end of the server; False after a long silence."""
    waits = {asyncio.create_task(event.wait()) for event in (watcher.wake, draining)}
    try:
        done, _ = await asyncio.wait(
            waits, timeout=SILENCE_SECONDS, return_when=asyncio.FIRST_COMPLETED
        )
    finally:
        for wait in waits:
            wait.cancel()
    return bool(done)


def summary(conversion: Conversion) -> dict[str, Any]:
    """A conversion's document whose reports have the number of their tensors in place of ``tensors``."""
    document = conversion.model_dump(mode="json", exclude={"result"})
    reports = short_reports(conversion.result)
    if reports is None:
        return {**document, "result": None}
    return {**document, "result": reports, "result_url": result_url(conversion.id)}


def _event(conversion: Conversion, select: Select | None) -> str:
    kind = "end" if conversion.done else "conversion"
    document = summary(conversion) if select is None else select(conversion.model_dump(mode="json"))
    data = json.dumps(document)
    return f"id: {conversion.revision}\nevent: {kind}\ndata: {data}\n\n"
