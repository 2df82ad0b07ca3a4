"""The conversion that a path names, or 404 if the caller may not see it."""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends, Path, Request

from reshard_server.api.caller import Converting, Reading, Serving, looked_up
from reshard_server.api.read_mask import mask_of, wants
from reshard_server.auth.tokens import Caller
from reshard_server.db.conversions import conversions
from reshard_server.errors.problems import NOT_ALLOWED, NOT_FOUND, ProblemError
from reshard_server.observability.logs import ABOUT
from reshard_server.schemas.conversion import Conversion, targets_of
from reshard_server.services import Services

VERBS = (":cancel", ":retry")

ConversionId = Annotated[
    str,
    Path(
        description="Id of a conversion.",
        max_length=128,
        examples=["019d7c3a5b1e9f2c6d8e4a7b0c31"],
    ),
]


def visible(
    serving: Services, caller: Caller, conversion: str, with_result: bool = True
) -> Conversion:
    """The conversion; ProblemError if it does not exist or belongs to another token."""
    if conversion.endswith(VERBS):
        raise ProblemError(
            NOT_ALLOWED,
            f"{conversion!r} ends with an action, which takes POST only; send POST, or remove the action",
            headers={"Allow": "POST"},
        )
    found = conversions.get(serving.database, conversion, with_result)
    if found is None or not (caller.is_admin or found.created_by == caller.name):
        raise gone(conversion)
    ABOUT.get().found(found.id)
    ABOUT.get().aims_at(*(requested.target for requested in targets_of(found.request)))
    return found


def gone(conversion: str) -> ProblemError:
    """The problem for a conversion that does not exist."""
    return ProblemError(
        NOT_FOUND,
        f"there is no conversion {conversion!r} that this token may see; list them at /v1/conversions",
    )


async def _to_read(
    id: ConversionId,  # noqa: A002
    request: Request,
    serving: Serving,
    caller: Reading,
) -> Conversion:
    with_result = wants(mask_of(request), "result")
    return await looked_up(serving, visible, serving, caller, id, with_result)


async def _to_change(
    id: ConversionId,  # noqa: A002
    serving: Serving,
    caller: Converting,
) -> Conversion:
    return await looked_up(serving, visible, serving, caller, id)


Readable = Annotated[Conversion, Depends(_to_read)]
Changeable = Annotated[Conversion, Depends(_to_change)]
