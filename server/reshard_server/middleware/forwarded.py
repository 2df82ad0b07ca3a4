"""Takes a request that came through a trusted proxy as the proxy received it."""

from __future__ import annotations

from starlette.types import ASGIApp, Receive, Scope, Send

from reshard_server.auth.proxies import Proxies


class Forwarded:
    """Puts the client, the scheme and the host that a believed proxy names into the request."""

    def __init__(self, app: ASGIApp, proxies: Proxies) -> None:
        self.app = app
        self.proxies = proxies

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        found = self.proxies.seen_by(scope) if scope["type"] == "http" else scope
        await self.app(found, receive, send)
