"""Answers as one document, or as a stream of events that ends with it, by the client's ``Accept``."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from reshard_server.api.caller import asking_token
from reshard_server.api.conversions.events import SILENCE_SECONDS, EventStream
from reshard_server.api.read_mask import Mask, mask_of, narrowed
from reshard_server.errors.problems import CLIENT_GONE, ProblemError
from reshard_server.queries.ask import TICK_SECONDS, Answered, Progressed, Question
from reshard_server.services import Services

EVENTS: dict[str, Any] = {
    "text/event-stream": {
        "schema": {
            "type": "object",
            "description": "One event of the stream; `data` is JSON: progress as of a conversion, the answer, or a "
            "problem document.",
            "properties": {
                "event": {"enum": ["progress", "answer", "problem"]},
                "data": {"type": "string"},
            },
        }
    }
}


async def answered(request: Request, serving: Services, question: Question) -> Response:
    """The answer as one JSON document; given up when the client goes away."""
    return Response(await answer_to(request, serving, question), media_type="application/json")


async def answer_to(request: Request, serving: Services, question: Question) -> str:
    """The answer as JSON; ProblemError where there is none, or the client went away."""
    async with aclosing(serving.questions.ask(question, asking_token(request))) as told:
        async for heard in told:
            if isinstance(heard, Answered):
                return heard.text
            if await request.is_disconnected():
                raise ProblemError(CLIENT_GONE, "the client went away before the answer was there")
    raise AssertionError


async def answered_or_watched(request: Request, serving: Services, question: Question) -> Response:
    """The same, or with ``Accept: text/event-stream`` its progress and then the answer."""
    if "text/event-stream" not in request.headers.get("accept", ""):
        return await answered(request, serving, question)
    token = asking_token(request)
    return EventStream(
        _events(serving, question, token, mask_of(request)), serving.streams.take(token)
    )


async def _events(
    serving: Services, question: Question, token: str, mask: Mask | None
) -> AsyncIterator[str]:
    silent = 0.0
    try:
        async with aclosing(serving.questions.ask(question, token)) as told:
            async for heard in told:
                silent = 0.0 if heard else silent + TICK_SECONDS
                if isinstance(heard, Answered):
                    yield _event("answer", await asyncio.to_thread(_narrowed, heard.text, mask))
                elif isinstance(heard, Progressed):
                    yield _event("progress", heard.text)
                elif silent >= SILENCE_SECONDS:
                    silent = 0.0
                    yield ": still here\n\n"
    except ProblemError as problem:
        yield _event("problem", json.dumps(problem.document()))


def _narrowed(text: str, mask: Mask | None) -> str:
    return text if mask is None else json.dumps(narrowed(json.loads(text), mask))


def _event(kind: str, data: str) -> str:
    return f"event: {kind}\ndata: {data}\n\n"
