"""Which requests go into the audit log: those that may change something, and unknown tokens."""

from __future__ import annotations

from starlette.datastructures import Headers
from starlette.types import Scope

from reshard_server.auth.origins import SAFE_METHODS
from reshard_server.observability.audit import Event, audit
from reshard_server.observability.logs import ABOUT

LOOKS = frozenset(
    {
        "/v1/plans",
        "/v1/checkpoints:inspect",
        "/v1/checkpoints:verify",
        "/v1/layouts:preview",
    }
)
"""What is asked by POST and changes nothing. Every other request that is no GET is told, also where no route wants it."""

_SESSIONS: dict[str, Event] = {"/sign-in": "sign-in", "/sign-out": "sign-out"}
_UNAUTHENTICATED = 401
LONGEST = 500


def audit_request(scope: Scope, status: int | None) -> None:
    """Tells a request and its outcome, where it is one to be told; ``status`` is None where no answer began."""
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
    if scope["method"] not in SAFE_METHODS and path not in LOOKS:
        event = _SESSIONS.get(path, "change")
        return None if event == "change" and ABOUT.get().is_look else event
    is_guess = status == _UNAUTHENTICATED and "authorization" in Headers(scope=scope)
    return "refused" if is_guess else None
