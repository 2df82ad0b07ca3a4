"""Request targets in absolute form (RFC 9112, 3.2.2): ``GET http://host/path``, as clients send them that use a proxy."""

from __future__ import annotations

import re
from urllib.parse import unquote

from starlette.types import ASGIApp, Receive, Scope, Send

_ABSOLUTE = re.compile(rb"https?://(?P<host>[^/@]+)(?P<path>/.*)?", re.IGNORECASE | re.DOTALL)
"""Matches no user names: RFC 9110 (4.2.4) takes them for an error, and such a target has no path here."""


class OriginForm:
    """Passes on a target in absolute form as its path and its host; the header Host is then ignored, by the RFC."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        target = scope.get("raw_path") or b""
        if scope["type"] == "http" and (absolute := _ABSOLUTE.fullmatch(target)):
            path = absolute["path"] or b"/"
            scope["raw_path"], scope["path"] = path, unquote(path.decode("ascii"))
            others = [(name, value) for name, value in scope["headers"] if name != b"host"]
            scope["headers"] = [(b"host", absolute["host"]), *others]
        await self.app(scope, receive, send)
