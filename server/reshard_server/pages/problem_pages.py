"""Security headers of all pages, and problems as pages for browsers."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlencode

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.types import Message, Receive, Scope, Send

from reshard_server.errors.problems import MEDIA_TYPE
from reshard_server.middleware.http_protocol import HttpMiddleware
from reshard_server.pages.rendering import page
from reshard_server.pages.visitor import SIGN_IN

POLICY = "; ".join(
    [
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' data:",
        "connect-src 'self'",
        "form-action 'self'",
        "base-uri 'none'",
        "frame-ancestors 'none'",
    ]
)
"""The Content-Security-Policy: only our own files, and no framing by other sites."""

PAGE_HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",  # with no-referrer a form would have the origin null
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}
"""Headers that a page gets unless it sets them."""

_NO_PAGES = ("/v1/", "/metrics", "/livez", "/readyz", "/openapi.json", "/hf/", "/s3")
_KEPT = ("x-request-id", "retry-after", "allow", "connection")
"""Headers of a problem document that its page keeps."""


class ProblemPages(HttpMiddleware):
    """Adds the headers of pages, and turns problem documents into pages."""

    async def answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_page = not scope["path"].startswith(_NO_PAGES)
        await self.app(scope, receive, _Sending(scope, receive, send) if is_page else send)


@dataclass
class _Sending:
    """Sends the answer of one request; holds a problem back until it is complete."""

    scope: Scope
    receive: Receive
    send: Send
    problem: Message | None = None
    body: bytes = b""

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            asked = Headers(scope=self.scope).get("accept", "")
            media = Headers(raw=message["headers"]).get("content-type")
            if "text/html" in asked and media == MEDIA_TYPE:
                self.problem = message
                return
            _add_headers(MutableHeaders(scope=message))
        elif self.problem is not None:
            self.body += message.get("body", b"")
            if not message.get("more_body", False):
                await self._page(self.problem)
            return
        await self.send(message)

    async def _page(self, start: Message) -> None:
        answer = self._answer(json.loads(self.body))
        headers = Headers(raw=start["headers"])
        answer.headers.update({name: headers[name] for name in _KEPT if name in headers})
        _add_headers(answer.headers)
        await answer(self.scope, self.receive, self.send)

    def _answer(self, problem: dict[str, Any]) -> Response:
        request = Request(self.scope)
        if problem["status"] == 401 and request.method == "GET":
            return RedirectResponse(sign_in_url(request), 303)
        return page("problem.html", None, problem["status"], problem=problem)


def sign_in_url(request: Request) -> str:
    """The sign-in form's URL, which leads back to the requested page."""
    query = f"?{request.url.query}" if request.url.query else ""
    after = quote(request.url.path) + query
    return f"{SIGN_IN}?{urlencode({'after': after})}" if after != "/" else SIGN_IN


def _add_headers(headers: MutableHeaders) -> None:
    for name, value in PAGE_HEADERS.items():
        headers.setdefault(name, value)
