"""``Expect: 100-continue``: refuses before the client sends a body that would be thrown away.

Whatever asks for the body has ``100 Continue`` sent first. An answer that came without it leaves open whether the body
follows, so it ends the connection: nothing of the body is ever taken for another request.
"""

from __future__ import annotations

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send


def waits_with_body(scope: Scope) -> bool:
    """Whether the client sends its body only once it is asked for it."""
    return Headers(scope=scope).get("expect", "").lower() == "100-continue"


class Continuing:
    """Closes the connection behind an answer to a client that was not asked for its body."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not waits_with_body(scope):
            await self.app(scope, receive, send)
            return
        asked = False

        async def receiving() -> Message:
            nonlocal asked
            asked = True
            return await receive()

        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start" and not asked:
                MutableHeaders(scope=message)["Connection"] = "close"
            await send(message)

        await self.app(scope, receiving, sending)
