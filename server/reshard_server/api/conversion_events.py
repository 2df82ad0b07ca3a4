"""Events: a conversion's changes as a stream of server-sent events.

Each event contains the conversion as ``GET`` returns it; the event's id is its revision. Changes in quick succession
become one event. The last event is ``end``; then the stream ends.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Header, Request
from starlette.responses import Response

from reshard_server.api.answer_or_stream import SILENCE_SECONDS, STILL_HERE, EventStream
from reshard_server.api.caller import Reading, Serving
from reshard_server.api.conversions import Readable
from reshard_server.api.read_mask import NAME, MaskedRoute, mask_of, narrowed
from reshard_server.auth.tokens import Caller
from reshard_server.db.conversions.change_feed import Watcher
from reshard_server.drain import RETRY_AFTER
from reshard_server.schemas.base import MEANT
from reshard_server.schemas.conversion import Conversion, result_url
from reshard_server.services import Services

ROUTER = APIRouter(prefix="/v1/conversions", tags=["conversions"], route_class=MaskedRoute)

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
                },
            }
        },
    },
    204: {"description": "It has ended, and the client has the last event: do not reconnect."},
}


@ROUTER.get("/{id}/events", status_code=200, response_class=EventStream, responses=_EVENTS)
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
    if first.revision != seen:
        yield await asyncio.to_thread(_event, first, select)
    if first.done:
        return
    with serving.feed.watching(first.id, first.revision) as watcher:
        while not serving.drain.begun.is_set():
            is_woken = await _woken(watcher, serving.drain.begun)
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
    if conversion.result is None:
        return {**document, "result": None}
    reports = [
        {
            **{k: v for k, v in report.items() if k != "tensors"},
            "tensor_count": len(report["tensors"]),
        }
        for report in conversion.result
    ]
    return {**document, "result": reports, "result_url": result_url(conversion.id)}


def _event(conversion: Conversion, select: Select | None) -> str:
    kind = "end" if conversion.done else "conversion"
    document = summary(conversion) if select is None else select(conversion.model_dump(mode="json"))
    data = json.dumps(document)
    return f"id: {conversion.revision}\nevent: {kind}\ndata: {data}\n\n"
