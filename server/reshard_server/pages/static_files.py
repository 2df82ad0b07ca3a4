"""The route of the style sheet and the script."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.responses import Response

from reshard_server.errors.problems import NOT_FOUND, ProblemError
from reshard_server.pages.rendering import STATIC, static_bytes

ROUTER = APIRouter(include_in_schema=False)

KEPT = "public, max-age=31536000, immutable"
"""The URL changes with the content."""


@ROUTER.get("/static/{name}")
def get_static(name: str) -> Response:
    """Sends a static file; needs no token."""
    if name not in STATIC:
        raise ProblemError(NOT_FOUND, f"there is no file {name[:100]!r}; see the page's source")
    return Response(static_bytes(name), headers={"Cache-Control": KEPT}, media_type=STATIC[name])
