"""Limits on the number of members, checked before the members themselves.

pydantic's own ``max_length`` counts members after it has validated them: half a million invalid members took seconds, in
which nothing else of the process ran.
"""

from __future__ import annotations

from typing import Any

from pydantic import BeforeValidator
from pydantic_core import PydanticCustomError, PydanticKnownError

MOST_MEMBERS = 100
"""Limit for an object with named members; no valid request has as many."""


def at_most(number: int) -> BeforeValidator:
    """For a list or an object with free names: refuses more members than this before validating them."""

    def check(value: Any) -> Any:
        if isinstance(value, list | tuple | dict) and len(value) > number:
            raise PydanticKnownError(
                "too_long",
                {"field_type": "List", "max_length": number, "actual_length": len(value)},
            )
        return value

    return BeforeValidator(check)


def check_members(value: Any) -> Any:
    """Refuses an object with too many members, each of which would otherwise be reported as unknown."""
    if isinstance(value, dict) and len(value) > MOST_MEMBERS:
        raise PydanticCustomError(
            "too_many_members",
            "expected at most {most} members, found {found}",
            {"most": MOST_MEMBERS, "found": len(value)},
        )
    return value
