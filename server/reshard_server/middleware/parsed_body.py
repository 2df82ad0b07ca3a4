"""Bodies that are parsed once: a route takes the document that ``middleware.body_limits`` parsed."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import Request, Response
from fastapi.routing import APIRoute

PARSED = "reshard.parsed"
"""Where a request's scope has the document of its body, as the one member of a tuple."""


class ParsedBodyRoute(APIRoute):
    """A route whose body was parsed before."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """As upstream, which finds the document where it keeps what it has parsed itself."""
        handle = super().get_route_handler()

        async def with_document(request: Request) -> Response:
            if (parsed := request.scope.get(PARSED)) is not None:
                [request._json] = parsed  # Starlette's own cache of it
            return await handle(request)

        return with_document
