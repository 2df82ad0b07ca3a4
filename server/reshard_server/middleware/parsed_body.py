"""Routes that take the body which ``middleware.body_limits`` has parsed, so that it is parsed only once."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import Request, Response
from fastapi.routing import APIRoute

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
