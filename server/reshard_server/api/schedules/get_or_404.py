"""The schedule that a path names, or 404; and whether it is in the state that the request expects."""

from __future__ import annotations

import re
from typing import Annotated

from fastapi import Depends, Header, Path

from reshard_server.api.caller import Converting, Reading, Serving
from reshard_server.auth.tokens import Caller
from reshard_server.db.schedules import schedules
from reshard_server.db.schedules.schedules import StoredSchedule
from reshard_server.errors.problems import (
    INVALID,
    NOT_ALLOWED,
    NOT_FOUND,
    PRECONDITION,
    ProblemError,
)
from reshard_server.services import Services

VERBS = (":pause", ":resume", ":run")
NAME_PATTERN = r"^[a-zA-Z0-9][a-zA-Z0-9._-]*$"

ScheduleName = Annotated[
    str,
    Path(
        description="Name of a schedule.",
        max_length=128,
        json_schema_extra={"pattern": NAME_PATTERN},
        examples=["serving"],
    ),
]
IfMatch = Annotated[
    str | None,
    Header(description="ETags, or *; only if the schedule is in one of these states."),
]
IfNoneMatch = Annotated[
    str | None,
    Header(
        description="ETags, or *; only if the schedule is in none of these states, or does not exist."
    ),
]


def new_name(name: ScheduleName) -> str:
    """Checks that a schedule may have this name."""
    if name.endswith(VERBS):
        raise ProblemError(
            NOT_ALLOWED,
            f"{name[-200:]!r} ends with an action, which takes POST only; send POST, or remove the action",
            headers={"Allow": "POST"},
        )
    if not re.fullmatch(NAME_PATTERN.rstrip("$"), name):
        raise ProblemError(
            INVALID,
            f"{name[:200]!r} is not a valid name of a schedule; use letters, digits, dots, hyphens and underscores, with a "
            "letter or a digit first",
            "name",
        )
    return name


def visible(serving: Services, caller: Caller, name: str) -> StoredSchedule:
    """The schedule; ProblemError if it does not exist or belongs to another token."""
    found = schedules.get(serving.database, new_name(name))
    if found is None or not may_see(caller, found):
        raise gone(name)
    return found


def may_see(caller: Caller, found: StoredSchedule) -> bool:
    """Whether the schedule belongs to the caller, or the caller is an admin."""
    return caller.is_admin or found.token == caller.name


def gone(name: str) -> ProblemError:
    """The problem for a schedule that does not exist."""
    return ProblemError(
        NOT_FOUND,
        f"there is no schedule {name[:200]!r} that this token may see; list them at /v1/schedules",
    )


def check_state(
    found: StoredSchedule | None, if_match: str | None, if_none_match: str | None = None
) -> None:
    """Raises ProblemError if the schedule is not in the state that the request expects."""
    if if_match is not None and (found is None or not _names(if_match, found)):
        raise changed(found)
    if if_none_match is not None and found is not None and _names(if_none_match, found):
        raise changed(found)


def changed(found: StoredSchedule | None) -> ProblemError:
    """The problem for a schedule in another state."""
    now = "does not exist" if found is None else f"is {found.tag} now"
    return ProblemError(
        PRECONDITION,
        f"the schedule {now}, which the request's If-Match or If-None-Match does not expect; read it again, and send the "
        "change with its ETag",
        remedy="read it again, and send the change with its ETag",
    )


def _names(header: str, found: StoredSchedule) -> bool:
    return bool({"*", found.tag} & {tag.strip() for tag in header.split(",")})


def _to_read(name: ScheduleName, serving: Serving, caller: Reading) -> StoredSchedule:
    return visible(serving, caller, name)


def _to_change(name: ScheduleName, serving: Serving, caller: Converting) -> StoredSchedule:
    return visible(serving, caller, name)


def _to_put(name: ScheduleName, caller: Converting) -> str:  # noqa: ARG001  (the caller is checked first)
    return new_name(name)


NewName = Annotated[str, Depends(_to_put)]
ReadableSchedule = Annotated[StoredSchedule, Depends(_to_read)]
ChangeableSchedule = Annotated[StoredSchedule, Depends(_to_change)]
