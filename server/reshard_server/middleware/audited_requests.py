"""Decides which requests go into the audit log: possible changes, and requests with unknown tokens."""

from __future__ import annotations

from starlette.datastructures import Headers
from starlette.types import Scope

from reshard_server.auth.origins import SAFE_METHODS
from reshard_server.observability.audit import Event, audit
from reshard_server.observability.logs import ABOUT

READ_ONLY_POSTS = frozenset(
    {
        "/v1/plans",
        "/v1/checkpoints:inspect",
        "/v1/checkpoints:verify",
        "/v1/layouts:preview",
    }
)
"""POST requests that change nothing. Every other request except GET is logged, even if there is no route for it."""

_SESSIONS: dict[str, Event] = {"/sign-in": "sign-in", "/sign-out": "sign-out"}
_UNAUTHENTICATED = 401
LONGEST = 500


def audit_request(scope: Scope, status: int | None) -> None:
    """Writes a request and its status to the audit log, if it belongs there; ``status`` is None without an answer."""
    event = _event(scope, status)
    if event is None:
        return
    about, client = ABOUT.get(), scope.get("client")
    several = about.conversions if len(about.conversions) > 1 else ()
    audit(
        event,
        caller=about.caller,
        address=client[0] if client else None,
        method=scope["method"][:LONGEST],
        resource=scope["path"][:LONGEST],
        targets=about.targets,
        conversions=" ".join(several) or None,
        status=status,
    )


def _event(scope: Scope, status: int | None) -> Event | None:
    path = scope["path"]
    if scope["method"] not in SAFE_METHODS and path not in READ_ONLY_POSTS:
        event = _SESSIONS.get(path, "change")
        return None if event == "change" and ABOUT.get().is_look else event
    is_unknown_token = status == _UNAUTHENTICATED and "authorization" in Headers(scope=scope)
    return "refused" if is_unknown_token else None
