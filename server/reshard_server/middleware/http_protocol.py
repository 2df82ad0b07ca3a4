"""HTTP itself: problem documents for malformed requests, and an end for clients that stall.

A connection is held open by what its client does not send, or does not take. Until the line and the headers of
a request are whole nothing else of the server sees it, so that limit is kept here; the one for its body is in
``limits``. Whatever was written and is not taken, byte by byte, is thrown away with the connection.
"""

from __future__ import annotations

import asyncio
import json

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from reshard_server.errors.problems import (
    HEADERS_TOO_LARGE,
    MALFORMED,
    MEDIA_TYPE,
    TOO_SLOW,
    ProblemError,
)
from reshard_server.middleware.slow_clients import Patience
from reshard_server.settings import Settings


class ProblemProtocol(H11Protocol):
    """uvicorn's, which answers broken requests with plain text, made to answer as the rest does.

    Attributes:
        head_seconds: for the line and the headers of a request, from the first byte of it, or from the
            connection's beginning.
        stalled_seconds: after which a client that takes nothing of what is sent is cut off.
    """

    head_seconds: float
    stalled_seconds: float

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Gives the client time for its first request."""
        super().connection_made(transport)
        self._head = Patience(self.loop, self.head_seconds, self._head_too_slow)
        self._taking = Patience(self.loop, self.stalled_seconds, self._nothing_taken)
        self._untaken = 0
        self._head.begin()

    def connection_lost(self, exc: Exception | None) -> None:
        """Nothing is waited for any more."""
        self._head.lift()
        self._taking.lift()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """A request's head that has begun must end in time."""
        super().data_received(data)
        if self.conn.their_state is h11.IDLE and not self.transport.is_closing():
            self._head.begin()
        else:
            self._head.lift()

    def _head_too_slow(self) -> None:
        if self.transport.is_closing():
            return
        if self.conn.trailing_data[0]:
            self._refuse(
                ProblemError(
                    TOO_SLOW,
                    f"the request's line and headers did not come within {self.head_seconds:g} seconds; send them at "
                    "once",
                )
            )
        else:
            self.transport.close()  # nothing was asked, so there is nothing to answer

    def pause_writing(self) -> None:
        """More was written than the client took."""
        super().pause_writing()
        self._untaken = self.transport.get_write_buffer_size()
        self._taking.begin()

    def resume_writing(self) -> None:
        """The client goes on taking."""
        self._taking.lift()
        super().resume_writing()

    def _nothing_taken(self) -> None:
        """Cuts the connection, unless something was taken since."""
        left = self.transport.get_write_buffer_size()
        if left < self._untaken:
            self._untaken = left
            self._taking.begin()
        else:
            self.logger.warning("a connection was cut off: its client takes nothing")
            self.transport.abort()

    def send_400_response(self, msg: str) -> None:  # noqa: ARG002  (the name and words are uvicorn's)
        """Refuses what h11 could not read, and closes the connection."""
        self._head.lift()
        self._refuse(self._problem())

    def _refuse(self, problem: ProblemError) -> None:
        if self.conn.our_state not in {h11.IDLE, h11.SEND_RESPONSE}:
            self.transport.close()  # an answer has begun; a second one would be taken for its end
            return
        body = json.dumps(problem.document()).encode()
        head = h11.Response(
            status_code=problem.kind.status,
            headers=[
                (b"content-type", MEDIA_TYPE.encode()),
                (b"content-length", str(len(body)).encode()),
                (b"connection", b"close"),
            ],
        )
        for event in (head, h11.Data(data=body), h11.EndOfMessage()):
            self.transport.write(self.conn.send(event) or b"")
        self.transport.close()

    def _problem(self) -> ProblemError:
        buffered = len(self.conn.trailing_data[0])
        limit = self.config.h11_max_incomplete_event_size or 0
        if buffered > limit:
            return ProblemError(
                HEADERS_TOO_LARGE,
                f"the request's line and headers have more than {limit} bytes; send less",
            )
        return ProblemError(
            MALFORMED, "this is no HTTP/1.1 request; send one as RFC 9112 describes it"
        )


def protocol_of(settings: Settings) -> type[ProblemProtocol]:
    """The protocol with the limits of these settings; uvicorn makes one for each connection."""

    class Limited(ProblemProtocol):
        head_seconds = settings.head_seconds
        stalled_seconds = settings.stalled_seconds

    return Limited
