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
    """What the application was made with."""
    found: Services = request.app.state.services
    return found


Serving = Annotated[Services, Depends(services)]


async def _caller(
    request: Request,
    _: Annotated[HTTPAuthorizationCredentials | None, Security(BEARER)],
) -> Caller:
    """Whom the gate let in; nobody gets here without it."""
    found: Caller = request.state.caller
    return found


def asking_token(request: Request) -> str:
    """The name of the token that asks, for limits of one token."""
    found: Caller = request.state.caller
    return found.name


async def looked_up(serving: Services, question: Callable[..., T], *arguments: Any) -> T:
    """What a question to the records is answered, by one of the few threads for that."""
    return await run_sync(question, *arguments, limiter=serving.lookers)


@dataclass(frozen=True)
class NeedsScope:
    """The caller, where it has this scope; a dependency."""

    scope: Scope

    async def __call__(self, caller: Annotated[Caller, Depends(_caller)]) -> Caller:
        self.check(caller)
        return caller

    def check(self, caller: Caller) -> None:
        """ProblemError where the caller lacks the scope."""
        if self.scope not in caller.scopes:
            raise ProblemError(
                FORBIDDEN,
                f"the token {caller.name!r} lacks the scope {self.scope!r}; ask for one that has it",
            )


MAY_READ = Depends(NeedsScope("read"))
"""For routes that tell everybody with this scope the same."""

Reading = Annotated[Caller, Depends(NeedsScope("read"))]
Converting = Annotated[Caller, Depends(NeedsScope("convert"))]
Administering = Annotated[Caller, Depends(NeedsScope("admin"))]


async def read_metrics(
    request: Request,
    serving: Serving,
    given: Annotated[HTTPAuthorizationCredentials | None, Security(BEARER)],
) -> None:
    """Lets everybody read metrics where the settings say so, else tokens with the scope read."""
    if not serving.settings.metrics_open:
        await NeedsScope("read")(await _caller(request, given))
