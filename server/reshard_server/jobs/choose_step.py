"""Choosing: a training run's step and a checkpoint's item, which become one plain path when a request comes in.

What is recorded and shown names that path, so that ``latest`` means the step that was there then.
"""

from __future__ import annotations

from typing import Literal, TypeVar

from anyio import CapacityLimiter
from anyio.to_thread import run_sync

from reshard import locate
from reshard.errors import ReshardError
from reshard_server.auth.paths import Roots
from reshard_server.auth.tokens import Caller
from reshard_server.errors.problems import problem_of
from reshard_server.jobs.accept import about
from reshard_server.schemas.base import OfRun
from reshard_server.worker.wording import RootNames

R = TypeVar("R", bound=OfRun)


async def choose(limiter: CapacityLimiter, roots: Roots, caller: Caller, request: R) -> R:
    """As ``with_choice``, in a thread where there is something to look up."""
    if request.step is None and request.item is None:
        return request
    return await run_sync(with_choice, roots, caller, request, limiter=limiter)


def with_choice(roots: Roots, caller: Caller, request: R) -> R:
    """The request whose checkpoint is the one that its step and item name.

    Raises ProblemError, for the member that is wrong, where there is no such step or item.
    """
    if request.step is None and request.item is None:
        return request
    member = request.checkpoint_member
    with about(f"/{member}"):
        path = getattr(request, member)
        roots.existing(caller, path)
    with about("/step"):
        path = _below(roots, caller, path, step=request.step)
    with about("/item"):
        path = _below(roots, caller, path, item=request.item)
    return request.model_copy(update={member: path, "step": None, "item": None})


def _below(
    roots: Roots,
    caller: Caller,
    path: str,
    *,
    step: int | Literal["latest"] | None = None,
    item: str | None = None,
) -> str:
    if step is None and item is None:
        return path
    real = roots.existing(caller, path)
    try:
        found = locate(real, step=step, item=item)
    except ReshardError as error:
        problem = problem_of(error)
        names = RootNames.of(roots.roots).only(path).before(real, path)
        problem.detail = names.text(problem.detail)
        problem.remedy = problem.remedy and names.text(problem.remedy)
        raise problem from error
    below = path + found.removeprefix(str(real))
    roots.existing(caller, below)  # a step's folder may be a link that leads out
    return below
