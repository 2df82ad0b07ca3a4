"""Several conversions cancelled by one form: each that the visitor may change, and what became of it."""

from __future__ import annotations

from dataclasses import dataclass

from fastapi import APIRouter
from starlette.responses import Response

from reshard_server.api.caller import Serving
from reshard_server.api.conversions import routes
from reshard_server.api.conversions.get_or_404 import visible
from reshard_server.auth.tokens import Caller
from reshard_server.errors.problems import CONFLICT, ProblemError
from reshard_server.pages.rendering import page
from reshard_server.pages.visitor import Changing, Form
from reshard_server.pages.wording import targets_text
from reshard_server.schemas.conversion import goals
from reshard_server.services import Services

ROUTER = APIRouter(prefix="/conversions", include_in_schema=False)

LONGEST_ID = 128


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one that was chosen.

    Attributes:
        title: its targets; its id where it cannot be seen.
        url: of its page; None where it cannot be seen.
        is_cancelled: whether it was cancelled, or told to stop, by this form.
    """

    title: str
    url: str | None
    is_cancelled: bool
    detail: str


@ROUTER.post("/cancel")
def cancel_chosen(visitor: Changing, serving: Serving, fields: Form) -> Response:
    """Cancels each one that was chosen; the page says which were cancelled, and why others were not."""
    chosen = [id[:LONGEST_ID] for id in fields.texts("id")]  # noqa: A001
    outcomes = [_cancel(serving, visitor.caller, conversion) for conversion in chosen]
    return page(
        "conversions/cancelled.html",
        visitor,
        cancelled=[o for o in outcomes if o.is_cancelled],
        left=[o for o in outcomes if not o.is_cancelled],
    )


def _cancel(serving: Services, caller: Caller, conversion: str) -> Outcome:
    try:
        found = visible(serving, caller, conversion)
    except ProblemError as problem:
        return Outcome(conversion, None, False, problem.detail)
    title, url = (
        targets_text([goal.target for goal in goals(found.request)]),
        f"/conversions/{found.id}",
    )
    if found.state in ("cancelling", "cancelled"):
        return Outcome(title, url, False, "it was cancelled before")
    try:
        now = routes.cancel_conversion(found, serving)
    except ProblemError as problem:
        if problem.kind is not CONFLICT:
            raise
        return Outcome(title, url, False, "it has ended already")
    is_over = now.state == "cancelled"
    return Outcome(
        title, url, True, "it waited" if is_over else "it runs, and stops within seconds"
    )
