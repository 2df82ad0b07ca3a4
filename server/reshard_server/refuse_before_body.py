"""Decides, before a client sends its body, every answer that does not depend on the body.

A route reads the body before it looks whether the caller may do this, and whether what the path names is there. Where
the client waits with its body (``Expect: 100-continue``), that is looked at first.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from anyio.to_thread import run_sync
from fastapi.routing import APIRoute
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.routing import Match
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from reshard_server.api import layouts
from reshard_server.api.caller import NeedsScope, looked_up
from reshard_server.api.conversions import get_or_404 as found
from reshard_server.api.schedules import get_or_404 as found_schedule
from reshard_server.auth.tokens import Caller
from reshard_server.errors.error_handlers import refuse, routes_of
from reshard_server.errors.problems import ProblemError
from reshard_server.middleware.body_limits import check_head, check_length
from reshard_server.middleware.expect_continue import waits_with_body
from reshard_server.pages.visitor import (
    address_bucket,
    changer,
    check_scope,
    known_visitor,
    nobody,
    visitor,
)
from reshard_server.services import Services
from reshard_server.settings import Settings


class Expecting:
    """Refuses what it can before the body is asked for."""

    def __init__(self, app: ASGIApp, settings: Settings) -> None:
        self.app = app
        self.settings = settings

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not waits_with_body(scope):
            await self.app(scope, receive, send)
            return
        request = Request(scope)
        try:
            check_head(scope, self.settings.header_bytes)
            route = _route(request)
            if route is not None:
                check_length(Headers(scope=scope), self.settings.body_bytes)
                await _check(route, request)
        except ProblemError as problem:
            await refuse(request, problem)(scope, receive, send)
            return
        await self.app(scope, receive if route is not None else _no_body, send)


async def _no_body() -> Message:
    """For what no route wants: it is refused without the body."""
    return {"type": "http.request", "body": b"", "more_body": False}


def _route(request: Request) -> APIRoute | None:
    """The route that will get the request, with the names in its path; None where none wants it."""
    for route in routes_of(request.app):
        match, names = route.matches(dict(request.scope))
        if match == Match.FULL and isinstance(route, APIRoute):
            request.scope["path_params"] = names["path_params"]
            return route
    return None


async def _check(route: APIRoute, request: Request) -> None:
    """ProblemError for what the route would refuse whatever the body says."""
    services: Services = request.app.state.services
    needed = list(_dependencies(route.dependant))
    caller: Caller | None = request.scope.get("state", {}).get("caller")
    for call in needed:
        if isinstance(call, NeedsScope) and caller is not None:
            call.check(caller)
    if visitor in needed:
        caller = await _visitor(request, services, changes=changer in needed)
    if caller is not None:
        await looked_up(services, _check_named, services, caller, request)


async def _visitor(request: Request, services: Services, *, changes: bool) -> Caller:
    who = await run_sync(known_visitor, request, services)
    if who is None:
        services.rates.take(address_bucket(request))
        raise nobody()
    check_scope(who, "read")
    if changes:
        check_scope(who, "convert")
    return who.caller


def _check_named(services: Services, caller: Caller, request: Request) -> None:
    """ProblemError where what the path names is not there for the caller, or not the caller's to change."""
    names, path = request.scope["path_params"], request.url.path
    if "id" in names:
        found.visible(services, caller, names["id"])
    elif path.startswith(("/v1/schedules/", "/schedules/")) and request.method != "PUT":
        found_schedule.visible(services, caller, names["name"])
    elif path.startswith("/v1/layouts/") and request.method == "PUT":
        layouts.check_owner(services, caller, names["name"])


def _dependencies(dependant: Any) -> Iterator[Any]:
    """What a route depends on, and what that depends on."""
    for inner in dependant.dependencies:
        yield inner.call
        yield from _dependencies(inner)
