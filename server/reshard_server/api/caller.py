"""The caller of a route, and the scopes that a route needs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

from anyio.to_thread import run_sync
from fastapi import Depends, Request, Security
from fastapi.security import HTTPBearer
from fastapi.security.http import HTTPAuthorizationCredentials

from reshard_server.auth.tokens import Caller
from reshard_server.errors.problems import FORBIDDEN, ProblemError
from reshard_server.services import Services
from reshard_server.settings import Scope

T = TypeVar("T")

BEARER = HTTPBearer(auto_error=False, description="A token of the server's settings.")


async def services(request: Request) -> Services:
    """The services of the application."""
    opened: Services = request.app.state.services
    return opened


Serving = Annotated[Services, Depends(services)]


async def _caller(
    request: Request, _: Annotated[HTTPAuthorizationCredentials | None, Security(BEARER)]
) -> Caller:
    """The caller that ``middleware.authenticate`` admitted."""
    caller: Caller = request.state.caller
    return caller


def token_name(request: Request) -> str:
    """The name of the request's token, for limits per token."""
    caller: Caller = request.state.caller
    return caller.name


async def looked_up(serving: Services, query: Callable[..., T], *arguments: Any) -> T:
    """The result of a query, run in one of the few threads for the database."""
    return await run_sync(query, *arguments, limiter=serving.lookers)


@dataclass(frozen=True)
class NeedsScope:
    """A dependency: the caller, if it has this scope."""

    scope: Scope

    async def __call__(self, caller: Annotated[Caller, Depends(_caller)]) -> Caller:
        self.check(caller)
        return caller

    def check(self, caller: Caller) -> None:
        """Raises ProblemError if the caller lacks the scope."""
        if self.scope not in caller.scopes:
            raise ProblemError(
                FORBIDDEN,
                f"the token {caller.name!r} lacks the scope {self.scope!r}; ask for one that has it",
            )


Reading = Annotated[Caller, Depends(NeedsScope("read"))]
Converting = Annotated[Caller, Depends(NeedsScope("convert"))]


async def read_metrics(
    request: Request,
    serving: Serving,
    given: Annotated[HTTPAuthorizationCredentials | None, Security(BEARER)],
) -> None:
    """Admits everyone if the settings say so, else callers with the scope ``read``."""
    if not serving.settings.metrics_open:
        await NeedsScope("read")(await _caller(request, given))
