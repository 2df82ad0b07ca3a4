"""Answers to questions: one document or a stream of events, by the client's ``Accept``; and read masks.

A read mask (AIP-157), ``?fields=id,state,result.seconds``, narrows any answer that is a JSON object. It names members by their
paths; a path applies to every item of a list. The allowed names are those in the API's description of the answer. An unknown
name is refused, and the problem lists the known ones.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import aclosing
from typing import Any

from anyio.to_thread import run_sync
from fastapi import Request
from starlette.responses import Response

from reshard_server.api.caller import token_name
from reshard_server.auth.limits import GiveBack
from reshard_server.errors.problems import CLIENT_GONE, INVALID, ProblemError
from reshard_server.jobs.ask import TICK_SECONDS, Answered, Progressed, Question
from reshard_server.middleware.body_limits import ParsedBodyRoute
from reshard_server.schemas.base import FIELDS_TEXT, LONGEST_FIELDS, MEANT
from reshard_server.services import Services
from reshard_server.views.byte_stream import CountedStream

SILENCE_SECONDS = 15.0
"""After this long without an event a comment shows that the stream lives."""

STILL_HERE = ": still here\n\n"


class EventStream(CountedStream):
    """A stream of events."""

    media_type = "text/event-stream"

    def __init__(self, events: AsyncIterator[str], give_back: GiveBack) -> None:
        super().__init__(events, headers={"X-Accel-Buffering": "no", "Cache-Control": "no-store"})
        self.give_back = give_back


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


NAME = "fields"
EVERYTHING = "*"
DEEPEST = 16

PARAMETER: dict[str, Any] = {
    "name": NAME,
    "in": "query",
    "required": False,
    "description": FIELDS_TEXT,
    "schema": {"type": "string", "maxLength": LONGEST_FIELDS},
}

Mask = Mapping[str, "Mask | None"]
"""The requested members, each with the mask of its own members; None for all."""

Schema = Mapping[str, Any]


class MaskedRoute(ParsedBodyRoute):
    """A route that applies ``fields`` to its answers; the mask is in the request's state."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """The handler with masked answers. An invalid mask is refused before the handler runs."""
        handle = super().get_route_handler()

        async def handle_masked(request: Request) -> Response:
            text = request.query_params.get(NAME)
            name, route = request.url.path.rpartition("/")[2], self.path_format.rpartition("/")[2]
            # The route took a path such as ``NAME:pause`` for a name; the handler refuses that.
            if text is None or (":" in name and ":" not in route):
                return await handle(request)
            mask = await run_sync(_checked_mask, request, self.path_format, text)
            request.state.mask = mask
            response = await handle(request)
            is_json = response.headers.get("content-type") == "application/json"
            if mask is not None and is_json and response.status_code < 300:
                response.body = await run_sync(_narrowed_body, bytes(response.body), mask)
                response.headers["content-length"] = str(len(response.body))
            return response

        return handle_masked


def mask_of(request: Request) -> Mask | None:
    """The mask of a request; None for all members."""
    mask: Mask | None = getattr(request.state, "mask", None)
    return mask


def wants(mask: Mask | None, member: str) -> bool:
    """True if the mask includes a member of the answer."""
    return mask is None or member in mask


def narrowed(value: Any, mask: Mask | None) -> Any:
    """The members of a document that the mask includes, in the document's order."""
    if mask is None:
        return value
    if isinstance(value, list):
        return [narrowed(item, mask) for item in value]
    if isinstance(value, dict):
        return {name: narrowed(inner, mask[name]) for name, inner in value.items() if name in mask}
    return value


def parsed(text: str) -> Mask | None:
    """Parses a mask. Raises ProblemError for other text."""
    paths = [path.strip() for path in text.split(",")]
    if len(text) > LONGEST_FIELDS or not all(
        all(names) and len(names) <= DEEPEST for names in (path.split(".") for path in paths)
    ):
        raise _refused(
            f"expected names of members, separated by commas, such as 'id,state', found {text[:60]!r}"
        )
    if EVERYTHING in paths:
        return None
    mask: dict[str, Any] = {}
    for path in paths:
        _add(mask, path.split("."))
    return mask


def _add(mask: dict[str, Any], names: list[str]) -> None:
    """Adds a path; a whole member includes all paths below it."""
    first, *rest = names
    if not rest or mask.get(first, {}) is None:
        mask[first] = None
    else:
        _add(mask.setdefault(first, {}), rest)


def check(mask: Mask, schema: Schema, schemas: Mapping[str, Schema], place: str = "") -> None:
    """Raises ProblemError for a name that the schema lacks; members without a schema accept any name."""
    members = _members(schema, schemas)
    for name, inner in mask.items():
        path = f"{place}.{name}" if place else name
        if members is not None and name not in members:
            known = f"known: {', '.join(members)}" if members else f"{place!r} has no members"
            raise _refused(f"there is no member {path[:100]!r}; {known}")
        if inner is not None and members is not None:
            check(inner, members[name], schemas, path)


def _members(schema: Schema, schemas: Mapping[str, Schema]) -> dict[str, Schema] | None:
    """The members of a schema, of a list's items, or of all alternatives; None if any name is allowed."""
    schema = schema.get(MEANT, schema)
    if "$ref" in schema:
        return _members(schemas[schema["$ref"].rpartition("/")[2]], schemas)
    if schema.get("type") == "array":
        return _members(schema.get("items", {}), schemas)
    if forms := [*schema.get("anyOf", ()), *schema.get("oneOf", ())]:
        return _of_all([_members(form, schemas) for form in forms])
    if "properties" in schema:
        return dict(schema["properties"])
    return None if schema.get("type", "object") == "object" else {}


def _of_all(forms: list[dict[str, Schema] | None]) -> dict[str, Schema] | None:
    """The members of all alternatives together; None if one of them allows any name."""
    if None in forms:
        return None
    found: dict[str, list[Schema]] = {}
    for members in forms:
        for name, schema in (members or {}).items():
            found.setdefault(name, []).append(schema)
    return {name: same[0] if len(same) == 1 else {"anyOf": same} for name, same in found.items()}


def _checked_mask(request: Request, path: str, text: str) -> Mask | None:
    mask, document = parsed(text), request.app.openapi()
    operation = document["paths"].get(path, {}).get(request.method.lower(), {})
    schema = answer_schema(operation)
    if mask is not None and schema is not None:
        check(mask, schema, document["components"]["schemas"])
    return mask


def answer_schema(operation: Mapping[str, Any]) -> Schema | None:
    """The schema of an operation's successful answer: of the JSON document, or of the events' data."""
    for status, response in operation.get("responses", {}).items():
        content = response.get("content", {}) if status.startswith("2") else {}
        if "application/json" in content:
            schema: Schema = content["application/json"].get("schema", {})
            return schema
        if "text/event-stream" in content:
            data: Schema | None = content["text/event-stream"]["schema"].get(MEANT)
            return data
    return None


def _narrowed_body(body: bytes, mask: Mask) -> bytes:
    return json.dumps(narrowed(json.loads(body), mask), ensure_ascii=False).encode()


def _refused(detail: str) -> ProblemError:
    return ProblemError(
        INVALID, f"{NAME}: {detail}", NAME, "name members that the answer has, or *"
    )
