"""The list of conversions, the page of one, and its buttons: cancel, retry, delete."""

from __future__ import annotations

from typing import Annotated, Any
from urllib.parse import urlencode

from fastapi import APIRouter, Depends, Query
from starlette.responses import RedirectResponse, Response

from reshard_server.api.caller import Serving, looked_up
from reshard_server.db.conversions import conversions
from reshard_server.db.conversions.conversions import Filters
from reshard_server.db.conversions.queue_places import places
from reshard_server.db.conversions.rows import ENDED
from reshard_server.pages.rendering import page
from reshard_server.pages.visitor import Changing, Form, Visiting
from reshard_server.resources import conversions as resource
from reshard_server.resources.conversions import ConversionId, visible
from reshard_server.resources.resource import listed_token
from reshard_server.schemas.conversion import Conversion, State, targets_of
from reshard_server.schemas.listing import ConversionQuery

ROUTER = APIRouter(prefix="/conversions", include_in_schema=False)

STATES: tuple[State, ...] = (
    "queued", "running", "cancelling", "succeeded", "failed", "cancelled"
)  # fmt: skip
PAGE_SIZE = 30
MOST_TENSORS = 500
"""Limit of a report's rows; the API's answer has all."""


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
    source: Annotated[str, Query(max_length=4096)] = "",
    label: Annotated[str, Query(max_length=321)] = "",
    page_token: Annotated[str | None, Query(max_length=1024)] = None,
) -> Response:
    """Lists conversions, newest first: by state, by text in the source, by label."""
    query = ConversionQuery.model_validate({"state": [state] if state else []})
    key, equals, value = label.strip().partition("=")
    filters = Filters(
        token=listed_token(visitor.caller),
        states=tuple(query.state),
        source_part=source.strip() or None,
        labels=((key, value),) if equals else (),
        label_key=key if key and not equals else None,
    )
    found = await looked_up(
        serving, conversions.page, serving.database, filters, PAGE_SIZE, page_token
    )
    query_of_page = {name: text for name, text in _filters(state, source, label).items() if text}
    more = found.next_page_token
    return page(
        "conversions/conversions.html",
        visitor,
        conversions=found.conversions,
        places=await looked_up(serving, places, serving.database, found.conversions),
        asked=_filters(state, source, label),
        kind=kind_of(state),
        states=STATES,
        first_url="/conversions" + (f"?{urlencode(query_of_page)}" if query_of_page else ""),
        next_url=more and "/conversions?" + urlencode({**query_of_page, "page_token": more}),
        is_first=page_token is None,
        going_on=any(not c.done for c in found.conversions),
    )


def _filters(state: str, source: str, label: str) -> dict[str, str]:
    return {"state": state, "source": source.strip(), "label": label.strip()}


def kind_of(state: str) -> str:
    """The columns of a list of conversions in this state; ``all`` for several states."""
    if state in ("running", "cancelling"):
        return "running"
    return "ended" if state in ENDED else state or "all"


@ROUTER.get("/{id}")
def show_conversion(found: Seen, visitor: Visiting, serving: Serving) -> Response:
    """Shows one conversion."""
    place = places(serving.database, [found]).get(found.id)
    return page("conversions/conversion.html", visitor, place=place, **_shown(found))


@ROUTER.post("/{id}/cancel")
def cancel_conversion(found: Changed, serving: Serving, _: Form) -> Response:
    """Cancels the conversion."""
    resource.cancel(serving, found)
    return RedirectResponse(f"/conversions/{found.id}", 303)


@ROUTER.post("/{id}/retry")
def retry_conversion(found: Changed, serving: Serving, _: Form) -> Response:
    """Queues the conversion again."""
    resource.retry(serving, found)
    return RedirectResponse(f"/conversions/{found.id}", 303)


@ROUTER.post("/{id}/delete")
def delete_conversion(found: Changed, serving: Serving, _: Form) -> Response:
    """Deletes the conversion's record."""
    resource.delete(serving, found)
    return RedirectResponse("/conversions", 303)


def _shown(found: Conversion) -> dict[str, Any]:
    return {"conversion": found, "targets": targets_of(found.request), "most_tensors": MOST_TENSORS}
