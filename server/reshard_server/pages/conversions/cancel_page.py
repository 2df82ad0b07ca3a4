"""Cancels the conversions that were chosen in a list, and shows the outcome of each."""

from __future__ import annotations

from dataclasses import dataclass

from fastapi import APIRouter
from starlette.responses import Response

from reshard_server.api.caller import Serving
from reshard_server.auth.tokens import Caller
from reshard_server.errors.problems import CONFLICT, ProblemError
from reshard_server.pages.rendering import page
from reshard_server.pages.visitor import Changing, Form
from reshard_server.pages.wording import targets_text
from reshard_server.resources import conversions as resource
from reshard_server.resources.conversions import visible
from reshard_server.schemas.conversion import targets_of
from reshard_server.services import Services

ROUTER = APIRouter(prefix="/conversions", include_in_schema=False)

LONGEST_ID = 128


@dataclass(frozen=True, slots=True)
class CancelOutcome:
    """The outcome for one chosen conversion.

    Attributes:
        title: its targets; its id if the visitor may not see it.
        url: of its page; None if the visitor may not see it.
        is_cancelled: whether this form cancelled it, or asked it to stop.
    """

    title: str
    url: str | None
    is_cancelled: bool
    detail: str


@ROUTER.post("/cancel")
def cancel_chosen(visitor: Changing, serving: Serving, fields: Form) -> Response:
    """Cancels each chosen conversion; the page lists the cancelled ones, and why others were not cancelled."""
    chosen = [id[:LONGEST_ID] for id in fields.texts("id")]  # noqa: A001
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
    title, url = (
        targets_text([requested.target for requested in targets_of(found.request)]),
        f"/conversions/{found.id}",
    )
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
