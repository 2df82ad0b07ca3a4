"""Conversions as pages: listed, looked at, cancelled, tried again, forgotten."""

from __future__ import annotations

from typing import Annotated, Any
from urllib.parse import urlencode

from fastapi import APIRouter, Depends, Query
from starlette.responses import RedirectResponse, Response

from reshard_server.models.conversion import Conversion, State, goals
from reshard_server.models.listing import ConversionQuery
from reshard_server.pages.rendering import page
from reshard_server.pages.visiting import Changing, Form, Visiting
from reshard_server.routes import conversions as routes
from reshard_server.routes.asking import Serving
from reshard_server.routes.found import ConversionId, visible

ROUTER = APIRouter(prefix="/conversions", include_in_schema=False)

STATES: tuple[State, ...] = (
    "queued", "running", "cancelling", "succeeded", "failed", "cancelled"
)  # fmt: skip
PAGE_SIZE = 30
MOST_TENSORS = 500
"""Rows of a report; the rest is in the API's answer."""


def _to_see(id: ConversionId, serving: Serving, visitor: Visiting) -> Conversion:  # noqa: A002
    return visible(serving, visitor.caller, id)


def _to_change(id: ConversionId, serving: Serving, visitor: Changing) -> Conversion:  # noqa: A002
    return visible(serving, visitor.caller, id)


Seen = Annotated[Conversion, Depends(_to_see)]
Changed = Annotated[Conversion, Depends(_to_change)]


@ROUTER.get("")
async def list_conversions(
    visitor: Visiting,
    serving: Serving,
    state: Annotated[State | str, Query(max_length=20)] = "",
    page_token: Annotated[str | None, Query(max_length=1024)] = None,
) -> Response:
    """Newest first, a page at a time."""
    query = ConversionQuery.model_validate(
        {"state": [state] if state else [], "page_size": PAGE_SIZE, "page_token": page_token}
    )
    found = await routes.list_conversions(query, serving, visitor.caller)
    more = found.next_page_token
    return page(
        "conversions.html",
        visitor,
        conversions=found.conversions,
        state=state,
        states=STATES,
        next_url=more and _listing_url(state, more),
        is_first=page_token is None,
        going_on=any(not c.done for c in found.conversions),
    )


def _listing_url(state: str, page_token: str) -> str:
    return "/conversions?" + urlencode(
        {**({"state": state} if state else {}), "page_token": page_token}
    )


@ROUTER.get("/{id}")
def show_conversion(found: Seen, visitor: Visiting) -> Response:
    """One conversion as it stands."""
    return page("conversion.html", visitor, **_shown(found))


@ROUTER.post("/{id}/cancel")
def cancel_conversion(found: Changed, serving: Serving, _: Form) -> Response:
    """Stops it."""
    routes.cancel_conversion(found, serving)
    return RedirectResponse(f"/conversions/{found.id}", 303)


@ROUTER.post("/{id}/retry")
def retry_conversion(found: Changed, serving: Serving, _: Form) -> Response:
    """Queues it again."""
    routes.retry_conversion(found, serving, Response())
    return RedirectResponse(f"/conversions/{found.id}", 303)


@ROUTER.post("/{id}/delete")
def delete_conversion(found: Changed, serving: Serving, _: Form) -> Response:
    """Forgets it."""
    routes.delete_conversion(found, serving)
    return RedirectResponse("/conversions", 303)


def _shown(found: Conversion) -> dict[str, Any]:
    return {
        "conversion": found,
        "targets": goals(found.request),
        "most_tensors": MOST_TENSORS,
        "seconds": _seconds(found),
    }


def _seconds(found: Conversion) -> float | None:
    if found.started_at is None or found.ended_at is None:
        return None
    return (found.ended_at - found.started_at).total_seconds()
