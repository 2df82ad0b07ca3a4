"""Refuses requests before the client sends the body, if the refusal does not depend on the body.

A route reads the body before it checks the caller's rights and whether the named resource exists. If the client waits
for ``100 Continue`` (``Expect: 100-continue``), these checks run first.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from anyio.to_thread import run_sync
from fastapi.routing import APIRoute
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.routing import Match
from starlette.types import Message, Receive, Scope, Send

from reshard_server.api.caller import NeedsScope, looked_up
from reshard_server.auth.tokens import Caller
from reshard_server.errors.error_handlers import refuse, routes_of
from reshard_server.errors.problems import ProblemError
from reshard_server.middleware.body_limits import check_announced, check_head
from reshard_server.middleware.http_protocol import HttpMiddleware, waits_with_body
from reshard_server.pages.visitor import (
    address_bucket,
    changer,
    check_scope,
    known_visitor,
    not_signed_in,
    visitor,
)
from reshard_server.resources import conversions, stored
from reshard_server.resources.schedules import SCHEDULES
from reshard_server.services import Services
from reshard_server.settings import Settings


@dataclass(eq=False)
class RefuseBeforeBody(HttpMiddleware):
    """Runs these checks for requests with ``Expect: 100-continue``."""

    settings: Settings

    async def answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        if not waits_with_body(scope):
            await self.app(scope, receive, send)
            return
        request = Request(scope)
        try:
            check_head(scope, self.settings.header_bytes)
            route = _route(request)
            if route is not None:
                check_announced(Headers(scope=scope), self.settings.body_bytes)
                await _check(route, request)
        except ProblemError as problem:
            await refuse(request, problem)(scope, receive, send)
            return
        await self.app(scope, receive if route is not None else _no_body, send)


async def _no_body() -> Message:
    """An empty body, for a request without a route: it is refused anyway."""
    return {"type": "http.request", "body": b"", "more_body": False}


def _route(request: Request) -> APIRoute | None:
    """The route of the request, with its path parameters; None if there is none."""
    for route in routes_of(request.app):
        match, names = route.matches(dict(request.scope))
        if match == Match.FULL and isinstance(route, APIRoute):
            request.scope["path_params"] = names["path_params"]
            return route
    return None


async def _check(route: APIRoute, request: Request) -> None:
    """Raises ProblemError if the route would refuse any body."""
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
        raise not_signed_in()
    check_scope(who, "read")
    if changes:
        check_scope(who, "convert")
    return who.caller


def _check_named(services: Services, caller: Caller, request: Request) -> None:
    """Raises ProblemError if the named resource does not exist for the caller, or may not be changed."""
    names, path = request.scope["path_params"], request.url.path
    if "id" in names:
        conversions.visible(services, caller, names["id"])
    elif path.startswith(("/v1/schedules/", "/schedules/")) and request.method != "PUT":
        SCHEDULES.visible(services, caller, names["name"])
    elif path.startswith(("/v1/layouts/", "/v1/maps/", "/v1/views/")) and request.method == "PUT":
        kind = stored.BY_SEGMENT[path.split("/")[2]]
        stored.check_owner(services, caller, kind, names["name"])


def _dependencies(dependant: Any) -> Iterator[Any]:
    """All dependencies of a route, including indirect ones."""
    for inner in dependant.dependencies:
        yield inner.call
        yield from _dependencies(inner)
