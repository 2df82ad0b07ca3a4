"""The list of conversions, the page of one with its buttons (cancel, retry, delete), and the first page."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated
from urllib.parse import urlencode

from anyio.to_thread import run_sync
from fastapi import APIRouter, Depends, Query, Request
from starlette.responses import RedirectResponse, Response

from reshard import __version__
from reshard_server.api.caller import Serving, looked_up
from reshard_server.auth.tokens import Caller
from reshard_server.db.conversions import conversions
from reshard_server.db.conversions.conversions import Filters
from reshard_server.db.conversions.places import places
from reshard_server.db.conversions.rows import ENDED
from reshard_server.db.deliveries import of_conversion
from reshard_server.db.schedules import schedules
from reshard_server.errors.problems import CONFLICT, NOT_FOUND, ProblemError
from reshard_server.pages.part_strips import SIGNS, rows_of
from reshard_server.pages.plan_pictures import plan_of, planned
from reshard_server.pages.rendering import next_url, page, targets_text
from reshard_server.pages.throughput import throughput_of
from reshard_server.pages.visitor import Changing, Form, Visiting
from reshard_server.resources import conversions as resource
from reshard_server.resources.conversions import ConversionId, visible
from reshard_server.resources.resource import listed_token
from reshard_server.schemas.conversion import (
    Conversion,
    OneDelta,
    State,
    targets_of,
)
from reshard_server.schemas.conversion_query import ConversionQuery
from reshard_server.services import Services

ROUTER = APIRouter(prefix="/conversions", include_in_schema=False)

STATES: tuple[State, ...] = (
    "queued", "running", "cancelling", "succeeded", "failed", "cancelled"
)  # fmt: skip
PAGE_SIZE = 30
MOST_TENSORS = 500
"""Limit of a report's rows; the API's answer has all."""


def _to_see(id: ConversionId, serving: Serving, visitor: Visiting) -> Conversion:  # noqa: A002  the name in the path
    return visible(serving, visitor.caller, id)


def _to_change(id: ConversionId, serving: Serving, visitor: Changing) -> Conversion:  # noqa: A002  the name in the path
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
    asked = {"state": state, "source": source.strip(), "label": label.strip()}
    query_of_page = {name: text for name, text in asked.items() if text}
    return page(
        "conversions/conversions.html",
        visitor,
        conversions=found.conversions,
        places=await looked_up(serving, places, serving.database, found.conversions),
        asked=asked,
        kind=kind_of(state),
        states=STATES,
        first_url="/conversions" + (f"?{urlencode(query_of_page)}" if query_of_page else ""),
        next_url=next_url("/conversions", found.next_page_token, **query_of_page),
        is_first=page_token is None,
        going_on=any(not c.done for c in found.conversions),
    )


def kind_of(state: str) -> str:
    """The columns of a list of conversions in this state; ``all`` for several states."""
    if state in ("running", "cancelling"):
        return "running"
    return "ended" if state in ENDED else state or "all"


@ROUTER.get("/{id}")
def show_conversion(found: Seen, visitor: Visiting, serving: Serving) -> Response:
    """Shows one conversion."""
    return page(
        "conversions/conversion.html",
        visitor,
        place=places(serving.database, [found]).get(found.id),
        conversion=found,
        targets=targets_of(found.request),
        is_delta=isinstance(found.request, OneDelta),
        has_plan=_has_plan(found),
        most_tensors=MOST_TENSORS,
        deliveries=of_conversion(serving.database, found.id),
        rows=rows_of(found.parts or ()),
        signs=SIGNS,
        throughput=throughput_of(found, datetime.now(UTC)),
    )


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


@ROUTER.post("/{id}/resend")
def resend_delivery(found: Changed, serving: Serving, fields: Form) -> Response:
    """Sends a delivery again."""
    resource.resend(serving, found, fields.text("delivery"))
    return RedirectResponse(f"/conversions/{found.id}#deliveries", 303)


@ROUTER.post("/{id}/delete")
def delete_conversion(found: Changed, serving: Serving, _: Form) -> Response:
    """Deletes the conversion's record."""
    resource.delete(serving, found)
    return RedirectResponse("/conversions", 303)


def _has_plan(found: Conversion) -> bool:
    """True if such a request can be planned."""
    request = found.request
    is_other = isinstance(request, OneDelta) or getattr(request, "merge", None) is not None
    return not is_other and not getattr(request, "deltas", ())


@ROUTER.get("/{id}/plan")
async def show_plan(
    found: Seen,
    visitor: Visiting,
    request: Request,
    serving: Serving,
    target: Annotated[int, Query(ge=0, le=99)] = 0,
    tensor: Annotated[str | None, Query(max_length=4096)] = None,
) -> Response:
    """Plans the conversion again from the present source; if that fails, the page shows the reason."""
    requested = targets_of(found.request)
    if not _has_plan(found):
        raise ProblemError(
            NOT_FOUND,
            f"there is no plan of the conversion {found.id}, which makes or applies deltas, or merges checkpoints; see its page",
            "id",
        )
    if target >= len(requested):
        raise ProblemError(
            NOT_FOUND,
            f"the conversion has {len(requested)} targets and no target {target}; targets count from 0",
            "target",
        )
    plan, problem = None, None
    try:
        body = await run_sync(plan_of, serving, found, requested[target])
        plan = await planned(request, serving, visitor.caller, body, tensor)
    except ProblemError as refused:
        problem = refused
    return page(
        "conversions/conversion_plan.html",
        visitor,
        conversion=found,
        target=requested[target],
        number=target,
        planned=plan,
        problem=problem,
    )


LONGEST_ID = 128


@dataclass(frozen=True, slots=True)
class CancelOutcome:
    """The outcome for one chosen conversion.

    Attributes:
        title: its targets; its id if the visitor may not see it.
        url: of its page; None if the visitor may not see it.
        is_cancelled: True if this form cancelled it, or asked it to stop.
    """

    title: str
    url: str | None
    is_cancelled: bool
    detail: str


@ROUTER.post("/cancel")
def cancel_chosen(visitor: Changing, serving: Serving, fields: Form) -> Response:
    """Cancels each chosen conversion; the page lists the cancelled ones, and the reasons why others were not."""
    chosen = [id[:LONGEST_ID] for id in fields.texts("id")]  # noqa: A001  the name of the field
    outcomes = [_cancel(serving, visitor.caller, conversion) for conversion in chosen]
    return page(
        "conversions/cancelled.html",
        visitor,
        cancelled=[o for o in outcomes if o.is_cancelled],
        left=[o for o in outcomes if not o.is_cancelled],
    )


def _cancel(serving: Services, caller: Caller, conversion: str) -> CancelOutcome:
    try:
        found = visible(serving, caller, conversion)
    except ProblemError as problem:
        return CancelOutcome(conversion, None, False, problem.detail)
    title = targets_text([requested.target for requested in targets_of(found.request)])
    url = f"/conversions/{found.id}"
    if found.state in ("cancelling", "cancelled"):
        return CancelOutcome(title, url, False, "it was cancelled before")
    try:
        now = resource.cancel(serving, found)
    except ProblemError as problem:
        if problem.kind is not CONFLICT:
            raise
        return CancelOutcome(title, url, False, "it has ended already")
    is_over = now.state == "cancelled"
    return CancelOutcome(
        title, url, True, "it waited" if is_over else "it runs, and stops within seconds"
    )


OVERVIEW = APIRouter(include_in_schema=False)

SHOWN = 10
_GROUPS: tuple[tuple[str, str, tuple[State, ...]], ...] = (
    ("Running", "running", ("running", "cancelling")),
    ("Waiting", "queued", ("queued",)),
    ("Ended last", "ended", ("succeeded", "failed", "cancelled")),
)
"""Title, columns and states of each list."""


@OVERVIEW.get("/")
def show_overview(visitor: Visiting, serving: Serving) -> Response:
    """Shows this token's conversions; an admin sees those of all tokens."""
    token = listed_token(visitor.caller)
    found = [
        (title, kind, conversions.page(serving.database, Filters(token, states), SHOWN).conversions)
        for title, kind, states in _GROUPS
    ]
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
