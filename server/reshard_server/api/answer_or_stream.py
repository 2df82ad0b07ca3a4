"""Answers a question with one document, or with a stream of events, by the client's ``Accept``."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from reshard_server.api.caller import token_name
from reshard_server.api.read_mask import Mask, mask_of, narrowed
from reshard_server.auth.limits import OpenStream
from reshard_server.errors.problems import CLIENT_GONE, ProblemError
from reshard_server.queries.ask import TICK_SECONDS, Answered, Progressed, Question
from reshard_server.services import Services

SILENCE_SECONDS = 15.0
"""After this long without an event a comment shows that the stream lives."""

STILL_HERE = ": still here\n\n"


class EventStream(StreamingResponse):
    """A stream of events; it counts as open until it ends, however it ends."""

    media_type = "text/event-stream"

    def __init__(self, events: AsyncIterator[str], stream: OpenStream) -> None:
        super().__init__(events, headers={"X-Accel-Buffering": "no", "Cache-Control": "no-store"})
        self.stream = stream

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self.stream.give_back()


EVENTS: dict[str, Any] = {
    "text/event-stream": {
        "schema": {
            "type": "string",
            "description": "Events `progress`, `answer` and `problem`; `data` is JSON: the progress (as of a conversion), the answer, or a "
            "problem document.",
        }
    }
}


async def answered(request: Request, serving: Services, question: Question) -> Response:
    """The answer as one JSON document; the question is cancelled when the client disconnects."""
    return Response(await answer_to(request, serving, question), media_type="application/json")


async def answer_to(request: Request, serving: Services, question: Question) -> str:
    """The answer as JSON; ProblemError if there is none, or the client disconnects."""
    async with aclosing(serving.questions.ask(question, token_name(request))) as updates:
        async for update in updates:
            if isinstance(update, Answered):
                return update.text
            if await request.is_disconnected():
                raise ProblemError(
                    CLIENT_GONE, "the client disconnected before the answer was ready"
                )
    raise AssertionError


async def answered_or_watched(request: Request, serving: Services, question: Question) -> Response:
    """Like ``answered``; with ``Accept: text/event-stream`` events of progress and then the answer."""
    if "text/event-stream" not in request.headers.get("accept", ""):
        return await answered(request, serving, question)
    token = token_name(request)
    return EventStream(
        _events(serving, question, token, mask_of(request)), serving.streams.take(token)
    )


async def _events(
    serving: Services, question: Question, token: str, mask: Mask | None
) -> AsyncIterator[str]:
    silent = 0.0
    try:
        async with aclosing(serving.questions.ask(question, token)) as updates:
            async for update in updates:
                silent = 0.0 if update else silent + TICK_SECONDS
                if isinstance(update, Answered):
                    yield _event("answer", await asyncio.to_thread(_narrowed, update.text, mask))
                elif isinstance(update, Progressed):
                    yield _event("progress", update.text)
                elif silent >= SILENCE_SECONDS:
                    silent = 0.0
                    yield STILL_HERE
    except ProblemError as problem:
        yield _event("problem", json.dumps(problem.document()))


def _narrowed(text: str, mask: Mask | None) -> str:
    return text if mask is None else json.dumps(narrowed(json.loads(text), mask))


def _event(kind: str, data: str) -> str:
    return f"event: {kind}\ndata: {data}\n\n"
