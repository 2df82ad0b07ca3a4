"""Resolves the step of a training run and the item of a checkpoint to one plain path, when a request arrives.

The path is recorded and shown, so ``latest`` keeps its meaning at the time of the request.
"""

from __future__ import annotations

from typing import Literal, TypeVar

from anyio import CapacityLimiter
from anyio.to_thread import run_sync

from reshard import locate
from reshard.errors import ReshardError
from reshard_server.auth.root_paths import Roots
from reshard_server.auth.tokens import Caller
from reshard_server.errors.problems import problem_of
from reshard_server.jobs.check_request import for_field
from reshard_server.schemas.base import CheckpointChoice
from reshard_server.worker.wording import RootNames

R = TypeVar("R", bound=CheckpointChoice)


async def choose_step(limiter: CapacityLimiter, roots: Roots, caller: Caller, request: R) -> R:
    """Like ``resolve_step``, in a thread if the request names a step or an item."""
    if request.step is None and request.item is None:
        return request
    return await run_sync(resolve_step, roots, caller, request, limiter=limiter)


def resolve_step(roots: Roots, caller: Caller, request: R) -> R:
    """The request with its step and item replaced by the path that they name.

    Raises ProblemError, naming the member, if there is no such step or item.
    """
    if request.step is None and request.item is None:
        return request
    member = request.checkpoint_member
    with for_field(f"/{member}"):
        path = getattr(request, member)
        roots.existing(caller, path)
    with for_field("/step"):
        path = _below(roots, caller, path, step=request.step)
    with for_field("/item"):
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
        found = roots.ask(path, lambda: locate(str(real), step=step, item=item))
    except ReshardError as error:
        problem = problem_of(error)
        root = path.partition("/")[0]
        names = RootNames.of({root: roots.place_of(root)}).before(real, path)
        problem.detail = names.text(problem.detail)
        problem.remedy = problem.remedy and names.text(problem.remedy)
        raise problem from error
    below = path + found.removeprefix(str(real))
    roots.existing(caller, below)  # a step's folder may be a link that leads out of the root
    return below
