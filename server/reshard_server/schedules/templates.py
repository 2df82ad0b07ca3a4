"""Templates of target paths, filled in for each run.

There are three fields and no format specifications. Any other text in braces is refused when the schedule is stored, so
that no run fails because of it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime

from reshard_server.errors.problems import INVALID, ProblemError

OF_STEPS = ("step", "time", "name")
OF_CLOCK = ("time", "name")

_FIELD = re.compile(r"\{(\w+)\}", re.ASCII)


def check_template(template: str, known: tuple[str, ...], field: str) -> None:
    """Raises ProblemError for an unknown field, or a brace that belongs to no field."""
    wrong = [name for name in _FIELD.findall(template) if name not in known]
    rest = _FIELD.sub("", template)
    if wrong or "{" in rest or "}" in rest:
        found = f"{{{wrong[0]}}}" if wrong else "a brace that belongs to no field"
        fields = ", ".join(f"{{{name}}}" for name in known)
        raise ProblemError(
            INVALID,
            f"the target {template[:200]!r} has {found}; the known fields are {fields}",
            field,
            f"use only {fields}",
        )


def fields_of(template: str) -> frozenset[str]:
    """The fields that a template has."""
    return frozenset(_FIELD.findall(template))


def filled(template: str, values: Mapping[str, str]) -> str:
    """The template with its fields filled in; fields within the values stay as they are."""
    return _FIELD.sub(lambda match: values[match[1]], template)


def values_of(name: str, at: float, step: int | None) -> dict[str, str]:
    """The value of each field."""
    time = datetime.fromtimestamp(at, UTC).strftime("%Y%m%dT%H%M%SZ")
    return {"name": name, "time": time} | ({} if step is None else {"step": str(step)})
