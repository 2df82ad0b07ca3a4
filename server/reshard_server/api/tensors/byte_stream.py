"""A response whose bytes are read while they are sent; a read error cuts the connection."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Iterator, Mapping

from starlette.concurrency import run_in_threadpool
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from reshard.errors import ReshardError
from reshard_server.auth.streams import OpenStream

LOG = logging.getLogger(__name__)


class ByteStream(StreamingResponse):
    """A stream of bytes; it counts as open until it ends, however it ends.

    After a read error the connection is closed before ``Content-Length`` bytes were sent, so no client takes the bytes
    for complete. The same happens if the client reads nothing for long (``middleware.http_protocol``).
    """

    media_type = "application/octet-stream"

    def __init__(
        self, pieces: Iterator[bytes], stream: OpenStream, status: int, headers: Mapping[str, str]
    ) -> None:
        super().__init__(_read_in_threads(pieces), status, headers)
        self.pieces = pieces
        self.stream = stream

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self.stream.give_back()
            close = getattr(self.pieces, "close", None)
            if close is not None:
                close()

    async def stream_response(self, send: Send) -> None:
        head = {"type": "http.response.start", "status": self.status_code}
        await send({**head, "headers": self.raw_headers})
        try:
            async for piece in self.body_iterator:
                await send({"type": "http.response.body", "body": piece, "more_body": True})
        except ReshardError as error:
            LOG.warning("a stream was cut off", extra={"detail": str(error)})
            return
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _read_in_threads(pieces: Iterator[bytes]) -> AsyncIterator[bytes]:
    while (piece := await run_in_threadpool(next, pieces, None)) is not None:
        yield piece
