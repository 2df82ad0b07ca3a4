"""Restores the client, scheme and host of a request from the headers of a trusted proxy."""

from __future__ import annotations

from starlette.types import ASGIApp, Receive, Scope, Send

from reshard_server.auth.proxies import Proxies


class Forwarded:
    """Puts the client, scheme and host that a trusted proxy names into the request."""

    def __init__(self, app: ASGIApp, proxies: Proxies) -> None:
        self.app = app
        self.proxies = proxies

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        received = self.proxies.seen_by(scope) if scope["type"] == "http" else scope
        await self.app(received, receive, send)
