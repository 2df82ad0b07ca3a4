"""The first page: running, waiting and ended conversions, and the next schedules."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.responses import Response

from reshard import __version__
from reshard_server.api.caller import Serving
from reshard_server.db.conversions import conversions
from reshard_server.db.conversions.conversions import Filters
from reshard_server.db.conversions.queue_places import places
from reshard_server.db.schedules import schedules
from reshard_server.pages.rendering import page
from reshard_server.pages.visitor import Visiting, Visitor
from reshard_server.resources.resource import listed_token
from reshard_server.schemas.conversion import Conversion
from reshard_server.schemas.job import State
from reshard_server.services import Services

ROUTER = APIRouter(include_in_schema=False)

SHOWN = 10
_GROUPS: tuple[tuple[str, str, tuple[State, ...]], ...] = (
    ("Running", "running", ("running", "cancelling")),
    ("Waiting", "queued", ("queued",)),
    ("Ended last", "ended", ("succeeded", "failed", "cancelled")),
)
"""Title, columns and states of each list."""


@ROUTER.get("/")
def show_overview(visitor: Visiting, serving: Serving) -> Response:
    """Shows this token's conversions; an admin sees those of all tokens."""
    token = listed_token(visitor.caller)
    found = [(title, kind, _newest(serving, visitor, states)) for title, kind, states in _GROUPS]
    listed, _ = schedules.page(serving.database, token, SHOWN, None)
    return page(
        "overview.html",
        visitor,
        counts=conversions.count_by_state(serving.database, token),
        groups=found,
        places=places(serving.database, (c for _, _, listed in found for c in listed)),
        going_on=any(listed for _, kind, listed in found if kind != "ended"),
        schedules=[stored.as_schedule(None) for stored in listed],
        roots=[r for r in serving.settings.roots if visitor.caller.may_read(r)],
        version=__version__,
    )


def _newest(serving: Services, visitor: Visitor, states: tuple[State, ...]) -> list[Conversion]:
    filters = Filters(listed_token(visitor.caller), states)
    return conversions.page(serving.database, filters, SHOWN).conversions
