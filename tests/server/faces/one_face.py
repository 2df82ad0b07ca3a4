"""The application of one view in this process, asked by httpx, or by a request target as it is on the wire."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import unquote

import httpx
from anyio.from_thread import BlockingPortal, start_blocking_portal
from fastapi import FastAPI
from reshard_server.faces.one_view import make_app

import reshard


class Face:
    """The views of an application, as a client of a hub reaches them."""

    def __init__(self, app: FastAPI, portal: BlockingPortal) -> None:
        self.app, self._portal = app, portal
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        self._client = httpx.AsyncClient(transport=transport, base_url="http://localhost/hf")

    def ask(self, path: str, method: str = "GET", **more: Any) -> httpx.Response:
        answer = self._portal.call(lambda: self._client.request(method, path, **more))
        # Either would let clients ask by another protocol, or trust a digest that nobody computed.
        assert not any("xet" in name.lower() for name in answer.headers)
        assert b"xetHash" not in answer.content
        assert b'"lfs"' not in answer.content
        return answer

    def ask_as_it_is(self, target: str) -> tuple[int, dict[str, str]]:
        """The status and the headers for a target that httpx would tidy up."""
        sent: list[Any] = []
        path, _, query = target.partition("?")
        scope = {
            "type": "http", "http_version": "1.1", "method": "GET", "scheme": "http", "root_path": "", "client": ("127.0.0.1", 1),
            "raw_path": path.encode(), "path": unquote(path), "query_string": query.encode(), "headers": [(b"host", b"localhost")],
        }  # fmt: skip

        async def receive() -> Any:
            return {"type": "http.request", "body": b"", "more_body": False}

        async def send(message: Any) -> None:
            sent.append(message)

        self._portal.call(self.app, scope, receive, send)
        headers = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
        return sent[0]["status"], headers


@contextmanager
def face_of(view: reshard.CheckpointView, token: str = "") -> Iterator[Face]:
    with start_blocking_portal() as portal:
        yield Face(make_app("tiny", view, token), portal)
