"""Answers with bytes that are read while they are sent, whole or a range of them."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import aclosing, suppress
from dataclasses import dataclass

from anyio import CancelScope
from starlette.concurrency import run_in_threadpool
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from reshard.errors import ReshardError
from reshard_server.auth.limits import GiveBack
from reshard_server.errors.problems import RANGE, ProblemError

LOG = logging.getLogger(__name__)

Piece = bytes | memoryview


class CountedStream(StreamingResponse):
    """A stream that counts as open until it ends, however it ends; then ``give_back`` is called."""

    give_back: GiveBack

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self.give_back()


class ByteStream(CountedStream):
    """A stream of bytes.

    After a read error the connection is closed before ``Content-Length`` bytes were sent, so no client takes the bytes
    for complete. The same happens if the client reads nothing for long (``middleware.http_protocol``).
    """

    media_type = "application/octet-stream"

    def __init__(
        self, pieces: Started, give_back: GiveBack, status: int, headers: Mapping[str, str]
    ) -> None:
        self._sent = _read_in_threads(pieces)
        super().__init__(self._sent, status, headers)
        self.pieces = pieces
        self._give_back = give_back

    def give_back(self) -> None:
        """Ends the count, and closes the source."""
        self._give_back()
        self.pieces.close()

    async def stream_response(self, send: Send) -> None:
        head = {"type": "http.response.start", "status": self.status_code}
        await send({**head, "headers": self.raw_headers})
        try:
            async with aclosing(self._sent) as sent:
                async for piece in sent:
                    await send({"type": "http.response.body", "body": piece, "more_body": True})
                    del (
                        piece
                    )  # an error keeps this frame, and so megabytes, until garbage is collected
        except ReshardError as error:
            LOG.warning("a stream was cut off", extra={"detail": str(error)})
            return
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _read_in_threads(pieces: Iterator[Piece]) -> AsyncGenerator[Piece]:
    """The pieces; while one is sent, a thread reads the next. A reader that leaves waits for that thread."""
    ahead = asyncio.ensure_future(run_in_threadpool(next, pieces, None))
    try:
        while (piece := await asyncio.shield(ahead)) is not None:
            ahead = asyncio.ensure_future(run_in_threadpool(next, pieces, None))
            yield piece
            del piece
    finally:
        # A generator that runs in a thread cannot be closed.
        with CancelScope(shield=True), suppress(Exception):
            await ahead
        piece = None
        del ahead


class Started(Iterator[Piece]):
    """Pieces of which the first is read now, so that its errors are known before an answer begins."""

    def __init__(self, pieces: Iterator[Piece]) -> None:
        self._pieces = pieces
        self._first = next(pieces, None)

    def __next__(self) -> Piece:
        first, self._first = self._first, None
        return next(self._pieces) if first is None else first

    def close(self) -> None:
        """Closes the source."""
        self._first = None
        close = getattr(self._pieces, "close", None)
        if close is not None:
            close()


_RANGE = re.compile(r"bytes=(\d{1,19})?-(\d{1,19})?", re.ASCII)


@dataclass(frozen=True, slots=True)
class ByteRange:
    """Bytes ``start:stop`` of ``total``; ``is_part`` if the answer is 206."""

    start: int
    stop: int
    total: int
    is_part: bool = True

    @property
    def length(self) -> int:
        return self.stop - self.start

    @property
    def content_range(self) -> str:
        return f"bytes {self.start}-{self.stop - 1}/{self.total}"


def byte_range(requested: str | None, if_range: str | None, tag: str, total: int) -> ByteRange:
    """The requested range; all bytes if there is no range, more than one, or if ``If-Range`` names another state.

    A malformed range is ignored, as the standard says. Raises ProblemError (416) for a range without a byte.
    """
    whole = ByteRange(0, total, total, is_part=False)
    match = _RANGE.fullmatch((requested or "").strip())
    if match is None or (if_range is not None and if_range.strip() != tag):
        return whole
    bounds = _bounds(match[1], match[2], total)
    if bounds is None:
        return whole
    start, stop = bounds
    if start >= stop:
        raise ProblemError(
            RANGE,
            f"the range {requested!r} has none of the {total} bytes; request bytes within them",
            "Range",
            "request bytes within them",
            headers={"Content-Range": f"bytes */{total}", "Accept-Ranges": "bytes"},
        )
    return ByteRange(start, stop, total)


def _bounds(first: str | None, last: str | None, total: int) -> tuple[int, int] | None:
    """The first byte and the one after the last, which may be none; None for a malformed range."""
    if first is None:
        return None if last is None else (max(0, total - int(last)), total)
    if last is None:
        return int(first), total
    return None if int(last) < int(first) else (int(first), min(int(last) + 1, total))
