"""Fields: which member of a request an error of the library is about, where the error's kind tells."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from reshard.errors import (
    FormatError,
    LayoutError,
    MemoryBudgetError,
    MissingError,
    ReshardError,
    ResumeError,
    SourceChangedError,
    TargetBusyError,
    TargetExistsError,
)

_OF_ALL: tuple[tuple[type[ReshardError], str], ...] = (
    (MemoryBudgetError, "max_memory"),
    (SourceChangedError, "source"),
    (MissingError, "source"),
    (FormatError, "source"),
)
_OF_A_TARGET: tuple[tuple[type[ReshardError], str], ...] = (
    (TargetExistsError, "target"),
    (TargetBusyError, "target"),
    (ResumeError, "target"),
    (LayoutError, "layout"),
)


@dataclass(frozen=True, slots=True)
class _Goal:
    """A target of a request.

    Attributes:
        place: where the request has it, as a JSON pointer.
        members: what is wanted of it.
    """

    place: str
    path: str
    members: dict[str, Any]


def field_of(error: ReshardError, request: dict[str, Any]) -> str | None:
    """The member, as a JSON pointer, of the request that a child was given; None where it may be any."""
    if (name := _named(error, _OF_ALL)) is not None:
        return _source_of(request) if name == "source" else f"/{name}"
    name, goal = _named(error, _OF_A_TARGET), _goal_of(error, request)
    if name is None or goal is None:
        return None
    if name == "layout" and goal.members.get("layout") is None:
        return f"{goal.place}/mesh" if goal.members.get("mesh") else goal.place or None
    return f"{goal.place}/{name}"


def _named(error: ReshardError, known: tuple[tuple[type[ReshardError], str], ...]) -> str | None:
    return next((name for kind, name in known if isinstance(error, kind)), None)


def _source_of(request: dict[str, Any]) -> str | None:
    question = request.get("question")
    if question == "verify" and request["arguments"].get("b"):
        return None  # either of the two
    return (
        "/checkpoint" if question in ("inspect", "verify", "fingerprint", "layout") else "/source"
    )


def _goal_of(error: ReshardError, request: dict[str, Any]) -> _Goal | None:
    """The target that an error is about: the one that it names, or the only one."""
    goals = _goals(request)
    if error.target is None:
        return goals[0] if len(goals) == 1 else None
    return next((goal for goal in goals if goal.path == error.target), None)


def _goals(request: dict[str, Any]) -> list[_Goal]:
    if request.get("question") == "plans":
        listed = [(goal["target"], goal) for goal in request["arguments"]["targets"]]
    elif "question" in request:
        return [_Goal("", "", request["arguments"])]
    else:
        listed = [(goal["target"], goal) for goal in request["targets"]]
    is_list = request.get("several", True)
    return [
        _Goal(f"/targets/{number}" if is_list else "", str(Path(path).absolute()), members)
        for number, (path, members) in enumerate(listed)
    ]
