"""Limits the size and the depth of requests, and refuses bodies that are not JSON or cannot be stored as text."""

from __future__ import annotations

import asyncio
import json
import math
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass
from typing import Any

from anyio import CapacityLimiter
from anyio.to_thread import run_sync
from fastapi import Response
from fastapi.routing import APIRoute
from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect, Request
from starlette.types import Message, Receive, Scope, Send

from reshard_server.errors.error_handlers import refuse
from reshard_server.errors.problems import (
    HEADERS_TOO_LARGE,
    MALFORMED,
    TOO_LARGE,
    TOO_SLOW,
    UNSUPPORTED,
    ProblemError,
)
from reshard_server.middleware.http_protocol import HttpMiddleware
from reshard_server.settings import Settings

PARSED = "reshard.parsed"
"""The key of the parsed body in a request's scope; its value is a tuple of one."""


class ParsedBodyRoute(APIRoute):
    """A route whose body is already parsed."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Like upstream, but puts the document into Starlette's cache of parsed bodies first."""
        handle = super().get_route_handler()

        async def with_document(request: Request) -> Response:
            if (parsed := request.scope.get(PARSED)) is not None:
                [request._json] = parsed  # Starlette's cache
            return await handle(request)

        return with_document


ASIDE_BYTES = 8192
"""Larger bodies are parsed in a thread; this one takes a millisecond or two."""

BYTES_OF_VALUE = 4
"""A body of the largest size may have one list, object or comma per this many bytes; layouts have one in seven."""

PARSERS = 2
"""Threads that parse bodies; more of them would only wait for the interpreter."""

DEEPEST = 64
LONGEST_NUMBER = 400
UNREAD_BODIES = 16
"""This many times the largest body is read and dropped, so that the client can read the refusal."""
UNREAD_SECONDS = 5.0


@dataclass(eq=False)
class BodyLimits(HttpMiddleware):
    """Reads the whole body, within the limit, before the application runs."""

    settings: Settings
    _parsers: CapacityLimiter | None = None

    async def answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        arriving = _Arriving(receive)
        try:
            check_head(scope, self.settings.header_bytes)
            check_announced(Headers(scope=scope), self.settings.body_bytes)
            async with asyncio.timeout(self.settings.body_seconds):
                body = await self._body(arriving)
            if body and scope["path"].startswith("/v1/"):
                check_type(Headers(scope=scope))
                check_count(body, self.settings.body_bytes // BYTES_OF_VALUE)
                scope[PARSED] = (await self._parsed(body),)
        except ProblemError as problem:
            await refuse_unread(problem, self.settings.body_bytes, scope, arriving, send)
            return
        except TimeoutError:
            too_slow = ProblemError(
                TOO_SLOW,
                f"the body did not arrive within {self.settings.body_seconds:g} seconds; send it at once",
                headers={"Connection": "close"},
            )
            await refuse(Request(scope), too_slow)(scope, receive, send)
            return
        except ClientDisconnect:
            return  # half a body is not a request, even if it is valid JSON
        await self.app(scope, _replay(body, receive), send)

    async def _parsed(self, body: bytes) -> Any:
        """The document; a large one is parsed in a thread, so that other requests are answered meanwhile."""
        if len(body) <= ASIDE_BYTES:
            return parsed_json(body)
        if self._parsers is None:
            self._parsers = CapacityLimiter(PARSERS)
        return await run_sync(parsed_json, body, limiter=self._parsers)

    async def _body(self, arriving: _Arriving) -> bytes:
        body = bytearray()
        while arriving.more:
            message = await arriving()
            if message["type"] == "http.disconnect":
                raise ClientDisconnect
            body += message.get("body", b"")
            if len(body) > self.settings.body_bytes:
                raise _too_large(self.settings.body_bytes)
        return bytes(body)


@dataclass
class _Arriving:
    """A ``receive`` that knows if more of the body is to come, and never waits after its end."""

    receive: Receive
    more: bool = True

    async def __call__(self) -> Message:
        message = await self.receive() if self.more else {"type": "http.request"}
        self.more = bool(message.get("more_body"))
        return message


def check_head(scope: Scope, limit: int) -> None:
    """Refuses a path and headers that are too large together, and NUL in the path or the query."""
    target = scope.get("raw_path") or b""
    size = len(target) + len(scope["query_string"])
    size += sum(len(name) + len(value) + 4 for name, value in scope["headers"])
    if size > limit:
        raise ProblemError(
            HEADERS_TOO_LARGE,
            f"the path and the headers have {size} bytes together; this server accepts {limit}; send less",
        )
    if b"%00" in scope["query_string"] or "\0" in scope["path"]:
        raise ProblemError(MALFORMED, "the path or the query has a NUL character; leave it out")


def check_announced(headers: Headers, limit: int) -> None:
    """Refuses a body by its Content-Length and its Content-Encoding, before any of it is read."""
    coding = ", ".join(headers.getlist("content-encoding")).strip().lower()
    if has_body(headers) and coding not in ("", "identity"):
        raise ProblemError(
            UNSUPPORTED,
            f"the body's Content-Encoding is {coding[:100]!r}, but this server decodes no body; send it as it is, without this header",
            headers={"Accept-Encoding": "identity", "Connection": "close"},
        )
    length = headers.get("content-length", "")
    if length.isascii() and length.isdecimal() and int(length[:20]) > limit:
        raise _too_large(limit)


def check_type(headers: Headers) -> None:
    """Refuses a body whose Content-Type is not JSON."""
    given = headers.get("content-type", "").partition(";")[0].strip().lower()
    if given != "application/json":
        raise ProblemError(
            UNSUPPORTED,
            f"the body is {given or 'of no type'!r}; expected application/json; send the header "
            "'Content-Type: application/json'",
        )


def check_count(body: bytes, at_most: int) -> None:
    """Refuses a body with too many values, since parsing would create all of them."""
    if sum(map(body.count, (b",", b"[", b"{"))) > at_most:
        raise _malformed(f"it has more than {at_most} lists, objects and commas")


def parsed_json(body: bytes) -> Any:
    """The document; ProblemError for invalid JSON, too much nesting, or text that cannot be stored."""
    try:
        document = json.loads(
            body.decode("utf-8"),
            object_pairs_hook=_object,
            parse_constant=_no_number,
            parse_int=_int,
            parse_float=_float,
        )
    except RecursionError:
        raise _malformed(f"it is nested deeper than {DEEPEST} levels") from None
    except ValueError as error:
        raise _malformed(str(error)) from None
    check_texts(document)
    return document


def check_texts(document: Any) -> None:
    """Refuses a document that is nested too deeply, or has text that cannot be stored."""
    for text in _texts(document, DEEPEST):
        if "\0" in text:
            raise _malformed("a text has a NUL character")
        try:
            text.encode()
        except UnicodeEncodeError:
            raise _malformed("a text has half of a surrogate pair") from None


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        twice = Counter(name for name, _ in pairs).most_common(1)[0][0]
        raise ValueError(f"the member {twice[:100]!r} occurs twice")
    return members


def _no_number(text: str) -> None:
    raise ValueError(f"{text} is not a JSON number")


def _int(text: str) -> int:
    if len(text) > LONGEST_NUMBER:
        raise ValueError(f"a number has {len(text)} digits")
    return int(text)


def _float(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text[:50]} is too large a number")
    return number


def _texts(value: Any, depth: int) -> Iterator[str]:
    """Every text in a document, including names of members."""
    if depth == 0:
        raise _malformed(f"it is nested deeper than {DEEPEST} levels")
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        yield from value
        for inner in value.values():
            yield from _texts(inner, depth - 1)
    elif isinstance(value, list):
        for inner in value:
            yield from _texts(inner, depth - 1)


def _malformed(why: str) -> ProblemError:
    return ProblemError(
        MALFORMED, f"the body is not valid JSON for this server: {why}; send one JSON object"
    )


def _too_large(limit: int) -> ProblemError:
    return ProblemError(
        TOO_LARGE,
        f"the body is larger than the {limit} bytes that this server accepts; send less",
        headers={"Connection": "close"},
    )


async def refuse_unread(
    problem: ProblemError, limit: int, scope: Scope, receive: Receive, send: Send
) -> None:
    """Sends the whole refusal at once; reads and drops the body before the answer ends.

    uvicorn closes the connection at the end of such an answer. If the client still sent, it would be reset, and the refusal lost.
    """

    async def sending(message: Message) -> None:
        is_body = message["type"] == "http.response.body"
        await send({**message, "more_body": True} if is_body else message)

    await refuse(Request(scope), problem)(scope, receive, sending)
    headers = Headers(scope=scope)
    if has_body(headers) and "expect" not in headers:  # reading would send 100 Continue
        await discard_body(receive, limit * UNREAD_BODIES)
    await send({"type": "http.response.body", "body": b""})


def has_body(headers: Headers) -> bool:
    """True if the request announces a body."""
    return headers.get("content-length", "0") != "0" or "transfer-encoding" in headers


async def discard_body(receive: Receive, limit: int) -> None:
    """Reads and drops a body up to a limit, so that the client can read the refusal."""
    more = True
    try:
        async with asyncio.timeout(UNREAD_SECONDS):
            while more and limit > 0:
                message = await receive()
                limit -= len(message.get("body", b""))
                more = message.get("more_body", False)
    except TimeoutError:
        return


def _replay(body: bytes, receive: Receive) -> Receive:
    """A ``receive`` that returns the body, and then the messages after it."""
    waiting = [body]

    async def receiving() -> Message:
        if waiting:
            return {"type": "http.request", "body": waiting.pop(), "more_body": False}
        return await receive()

    return receiving
