"""Error handlers: turn every error that leaves the application into a problem document.

They also recognise the reason why the database accepts no changes: it does not answer, is read-only, or its disk is full.
Drivers raise errors of several classes for this; PostgreSQL's error for a read-only transaction is an InternalError,
not an OperationalError.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.routing import Match, Route

from reshard.errors import ReshardError
from reshard_server.errors.hub_headers import hub_headers
from reshard_server.errors.problems import (
    INVALID,
    MALFORMED,
    MEDIA_TYPE,
    NOT_ALLOWED,
    NOT_FOUND,
    TOO_LARGE,
    UNAVAILABLE,
    UNSUPPORTED,
    Kind,
    ProblemError,
    problem_of,
)
from reshard_server.errors.s3_xml import ROOT, s3_refusal
from reshard_server.errors.value_errors import mistakes

LOG = logging.getLogger(__name__)

FORMS = frozenset({"OneTarget", "SeveralTargets", "OneDelta", "Clock", "NewSteps"})
"""Tags of a body's alternatives, which pydantic puts into the place of an error."""

_OF_STATUS = {k.status: k for k in (MALFORMED, NOT_FOUND, NOT_ALLOWED, TOO_LARGE, UNSUPPORTED)}


def refuse(request: Request, problem: ProblemError) -> Response:
    """The problem as a response to the request."""
    path = request.scope["path"]
    if path.startswith(ROOT):
        return s3_refusal(path, problem, headers_of(problem))
    return JSONResponse(
        problem.document(request.url.path),
        problem.kind.status,
        headers={**hub_headers(path, problem), **headers_of(problem)},
        media_type=MEDIA_TYPE,
    )


def headers_of(problem: ProblemError) -> dict[str, str]:
    """The headers of the response."""
    usual = {"Retry-After": problem.kind.retry_after} if problem.kind.retry_after else {}
    return {**usual, **problem.headers}


def add_refusals(app: FastAPI) -> None:
    """Adds the handlers to the application."""

    @app.exception_handler(ProblemError)
    async def _problem(request: Request, error: ProblemError) -> Response:
        return refuse(request, error)

    @app.exception_handler(ReshardError)
    async def _library(request: Request, error: ReshardError) -> Response:
        # An unexpected error may name folders of this host.
        named = problem_of(error).renamed(request.app.state.services.names.only().text)
        return refuse(request, named)

    @app.exception_handler(RequestValidationError)
    async def _invalid(request: Request, error: RequestValidationError) -> Response:
        return refuse(request, invalid(list(error.errors())))

    @app.exception_handler(sa.exc.SQLAlchemyError)
    async def _no_database(request: Request, error: sa.exc.SQLAlchemyError) -> Response:
        problem = without_database(error)
        if problem is None:
            raise error
        return refuse(request, problem)

    @app.exception_handler(HTTPException)
    async def _http(request: Request, error: HTTPException) -> Response:
        kind = _OF_STATUS.get(error.status_code) or Kind("http", "Refused", error.status_code)
        headers = dict(error.headers or {})
        if kind is NOT_ALLOWED:
            headers["Allow"] = ", ".join(sorted(_methods(request)))
        detail = f"{request.method} {request.url.path}: {_why(error, headers)}"
        return refuse(request, ProblemError(kind, detail, headers=headers))


def _why(error: HTTPException, headers: dict[str, str]) -> str:
    """The reason why no route handles the request."""
    if error.status_code == NOT_FOUND.status:
        return "there is no such path; the API's description is at /docs"
    if error.status_code == NOT_ALLOWED.status:
        return f"another method was expected; use {headers['Allow']}"
    return error.detail


def _methods(request: Request) -> set[str]:
    """The methods that any route allows at the request's path."""
    scope = dict(request.scope)
    found = [r for r in routes_of(request.app) if r.matches(scope)[0] != Match.NONE]
    verbs = [r for r in found if "}:" in r.path]  # "{id}:cancel" also matches "{id}"
    methods = set[str]().union(*(r.methods or set() for r in verbs or found))
    return methods | {"HEAD"} if "GET" in methods else methods


def routes_of(app: FastAPI) -> Iterator[Route]:
    """Every route of the application and of its routers."""
    for route in app.routes:
        router = getattr(route, "original_router", None)
        yield from (r for r in (router.routes if router else [route]) if isinstance(r, Route))


def without_database(error: Exception) -> ProblemError | None:
    """The problem while the database cannot be reached or changed; None for any other error."""
    found = unavailable(error)
    if found is None:
        return None
    LOG.warning("%s: %s", found.why, error)
    return no_records(found)


def no_records(found: Unavailable) -> ProblemError:
    """The problem of a database that cannot be used."""
    return ProblemError(
        UNAVAILABLE, found.detail, remedy=found.remedy, headers={"Retry-After": "10"}
    )


def invalid(errors: list[Any]) -> ProblemError:
    """The problem of an invalid request, with all its invalid fields."""
    if any(e["type"] == "json_invalid" for e in errors):
        return ProblemError(MALFORMED, "the body is not JSON; send one JSON object")
    wrong = [{"field": _field(place), "detail": text} for place, text in mistakes(errors)]
    first = wrong[0]
    return ProblemError(
        INVALID,
        f"{first['field']}: {first['detail']}",
        first["field"],
        "correct these fields; the API's description is at /docs",
        {"errors": wrong},
    )


def _field(place: tuple[Any, ...]) -> str:
    where, *rest = (part for part in place or ("body",) if part not in FORMS)
    if where == "body" and rest:
        return "/" + "/".join(map(str, rest))
    return str(rest[0] if rest else where)  # without the index in a repeated parameter


@dataclass(frozen=True, slots=True)
class Unavailable:
    """A reason, for messages.

    Attributes:
        takes_no_changes: True if the database answers queries but refuses changes.
    """

    why: str
    remedy: str
    takes_no_changes: bool = True

    @property
    def detail(self) -> str:
        return f"{self.why}; {self.remedy}"


_AGAIN = "send the request again later, and see the server's log"

NO_ANSWER = Unavailable("the database does not answer", _AGAIN, takes_no_changes=False)
READ_ONLY = Unavailable(
    "the database is read-only, so nothing can be changed",
    "send the request again when it accepts changes, and see the server's log",
)
FULL = Unavailable(
    "the disk of the server's records is full, so nothing can be changed",
    "free space there, and send the request again",
)
FAILING = Unavailable("the disk of the server's records fails", _AGAIN)

_OF_SQLITE = {8: READ_ONLY, 10: FAILING, 13: FULL}
"""By SQLite's primary result code."""

_OF_POSTGRES = {"25006": READ_ONLY, "53100": FULL, "25P03": NO_ANSWER}
"""By SQLSTATE; the last one means that a transaction of this process was idle for too long."""

_WORDS = (("readonly database", READ_ONLY), ("disk is full", FULL), ("disk I/O error", FAILING))
"""Messages, for a SQLite module without codes."""


def unavailable(error: BaseException) -> Unavailable | None:
    """The reason, if the database causes this error; None for any other error."""
    if isinstance(error, sa.exc.TimeoutError):
        return NO_ANSWER
    if not isinstance(error, sa.exc.DBAPIError):
        return None
    if (found := _reason_of(error.orig)) is not None:
        return found
    is_lost = isinstance(error, sa.exc.OperationalError) or error.connection_invalidated
    return NO_ANSWER if is_lost else None


def _reason_of(driver: BaseException | None) -> Unavailable | None:
    """The reason for a driver's error, by its code."""
    if (state := getattr(driver, "sqlstate", None)) is not None:
        return _OF_POSTGRES.get(state)
    if (code := getattr(driver, "sqlite_errorcode", None)) is not None:
        return _OF_SQLITE.get(code & 0xFF)
    return next((found for words, found in _WORDS if words in str(driver)), None)


def renew_read_only(db: sa.Engine) -> None:
    """Closes connections that turn out to be read-only: a new one may reach the server that took over."""

    @sa.event.listens_for(db, "handle_error")
    def _renew(context: sa.engine.ExceptionContext) -> None:
        if _reason_of(context.original_exception) is READ_ONLY:
            context.is_disconnect = True
