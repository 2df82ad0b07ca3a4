"""HTTP itself, with problem documents for what is no request at all."""

from __future__ import annotations

import json

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from reshard_server.problems import HEADERS_TOO_LARGE, MALFORMED, MEDIA_TYPE, ProblemError


class ProblemProtocol(H11Protocol):
    """uvicorn's, which answers broken requests with plain text, made to answer as the rest does."""

    def send_400_response(self, msg: str) -> None:  # noqa: ARG002  (the name and words are uvicorn's)
        """Refuses what h11 could not read, and closes the connection."""
        if self.conn.our_state not in {h11.IDLE, h11.SEND_RESPONSE}:
            self.transport.close()  # an answer has begun; a second one would be taken for its end
            return
        problem = self._problem()
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
