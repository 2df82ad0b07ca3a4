"""A response of server-sent events that counts against the limit of open streams."""

from __future__ import annotations

from collections.abc import AsyncIterator

from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from reshard_server.auth.streams import OpenStream

SILENCE_SECONDS = 15.0
"""After this long without an event a comment shows that the stream lives."""

STILL_HERE = ": still here\n\n"


class EventStream(StreamingResponse):
    """A stream of events; it counts as open until it ends, however it ends."""

    media_type = "text/event-stream"

    def __init__(self, events: AsyncIterator[str], stream: OpenStream) -> None:
        super().__init__(events, headers={"X-Accel-Buffering": "no", "Cache-Control": "no-store"})
        self.stream = stream

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self.stream.give_back()
