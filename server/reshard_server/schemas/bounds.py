"""Limits on the number of members, checked before the members themselves.

The checker's own ``max_length`` counts what it has checked: half a million wrong members of a list took it seconds, in which
nothing else of the process ran.
"""

from __future__ import annotations

from typing import Any

from pydantic import BeforeValidator
from pydantic_core import PydanticCustomError, PydanticKnownError

MOST_MEMBERS = 100
"""Of an object with named members; no request has as many."""


def at_most(number: int) -> BeforeValidator:
    """For a list, or an object with free names: refuses more members than this at once."""

    def check(value: Any) -> Any:
        if isinstance(value, list | tuple | dict) and len(value) > number:
            raise PydanticKnownError(
                "too_long",
                {"field_type": "List", "max_length": number, "actual_length": len(value)},
            )
        return value

    return BeforeValidator(check)


def check_members(value: Any) -> Any:
    """Refuses an object with absurdly many members, each of which would be told to be unknown."""
    if isinstance(value, dict) and len(value) > MOST_MEMBERS:
        raise PydanticCustomError(
            "too_many_members",
            "expected at most {most} members, found {found}",
            {"most": MOST_MEMBERS, "found": len(value)},
        )
    return value
