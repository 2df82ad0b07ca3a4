"""``Expect: 100-continue``: closes the connection if the server answers before it has asked for the body.

Reading the body sends ``100 Continue``. After an answer without it, the client may or may not send the body. So the
connection is closed, and no part of the body is taken for another request.
"""

from __future__ import annotations

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send


def waits_with_body(scope: Scope) -> bool:
    """True if the client waits for ``100 Continue`` before it sends the body."""
    return Headers(scope=scope).get("expect", "").lower() == "100-continue"


class CloseUnlessBodyRead:
    """Closes the connection after an answer that did not need the body."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not waits_with_body(scope):
            await self.app(scope, receive, send)
            return
        was_read = False

        async def receiving() -> Message:
            nonlocal was_read
            was_read = True
            return await receive()

        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start" and not was_read:
                MutableHeaders(scope=message)["Connection"] = "close"
            await send(message)

        await self.app(scope, receiving, sending)
