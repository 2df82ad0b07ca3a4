"""Finds the member of a request that a library error concerns, from the kind of the error."""

from __future__ import annotations

from dataclasses import dataclass
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
from reshard.storage.location import locate

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
class _RequestedTarget:
    """A target of a request.

    Attributes:
        place: its JSON pointer in the request.
        path: its absolute path, or its URL.
        members: its options.
    """

    place: str
    path: str
    members: dict[str, Any]


def field_of(error: ReshardError, request: dict[str, Any]) -> str | None:
    """The JSON pointer of the member in the request that a child was given; None if it may be any member."""
    if (name := _member_for(error, _OF_ALL)) is not None:
        return _source_of(request) if name == "source" else f"/{name}"
    name, requested = _member_for(error, _OF_A_TARGET), _requested_of(error, request)
    if name is None or requested is None:
        return None
    if name == "layout" and requested.members.get("layout") is None:
        return (
            f"{requested.place}/mesh" if requested.members.get("mesh") else requested.place or None
        )
    return f"{requested.place}/{name}"


def _member_for(
    error: ReshardError, known: tuple[tuple[type[ReshardError], str], ...]
) -> str | None:
    return next((name for kind, name in known if isinstance(error, kind)), None)


def _source_of(request: dict[str, Any]) -> str | None:
    question = request.get("question")
    if question == "verify" and (
        request["arguments"].get("b") or request["arguments"].get("deltas")
    ):
        return None  # any of them
    if request.get("delta") or request.get("deltas") or request.get("merge"):
        return None
    looks = ("inspect", "versions", "verify", "fingerprint", "identify", "layout")
    return "/checkpoint" if question in looks else "/source"


def _requested_of(error: ReshardError, request: dict[str, Any]) -> _RequestedTarget | None:
    """The target that an error names, or the only target."""
    targets = _requested_targets(request)
    if error.target is None:
        return targets[0] if len(targets) == 1 else None
    return next((requested for requested in targets if requested.path == error.target), None)


def _requested_targets(request: dict[str, Any]) -> list[_RequestedTarget]:
    if request.get("question") == "plans":
        listed = [(requested["target"], requested) for requested in request["arguments"]["targets"]]
    elif "question" in request:
        return [_RequestedTarget("", "", request["arguments"])]
    else:
        listed = [(requested["target"], requested) for requested in request["targets"]]
    is_list = request.get("several", True)
    return [
        _RequestedTarget(f"/targets/{number}" if is_list else "", str(locate(path)), members)
        for number, (path, members) in enumerate(listed)
    ]
