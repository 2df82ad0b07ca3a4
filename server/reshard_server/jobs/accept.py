"""Before a conversion is accepted: everything that can be known to be wrong without the checkpoint."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import sqlalchemy as sa

from reshard import check_arguments
from reshard.errors import ReshardError, StorageError
from reshard_server.auth.paths import Roots
from reshard_server.auth.tokens import Caller
from reshard_server.db.layouts.layouts import layout_content
from reshard_server.errors.problems import INVALID, ProblemError, problem_of
from reshard_server.schemas.conversion import (
    AnyPlanRequest,
    ConversionRequest,
    Goal,
    goals,
    library_options,
)
from reshard_server.settings import Settings

_LAYOUT = ("layout", "mesh", "missing_axes")
CHECKED = tuple(name for name in Goal.model_fields if name not in ("target", *_LAYOUT))
"""Members of a target that the library checks, each of which can be wrong by itself."""


class Serving(Protocol):
    """What is looked up for it."""

    @property
    def settings(self) -> Settings: ...

    @property
    def database(self) -> sa.Engine: ...

    @property
    def roots(self) -> Roots: ...


def check_conversion(
    serving: Serving, caller: Caller, request: ConversionRequest | AnyPlanRequest
) -> None:
    """Raises ProblemError, in the library's words where it has some, for what cannot be done."""
    with about("/source"):
        source = serving.roots.readable(caller, request.source)
    seen: dict[str, str] = {}
    for place, goal in _places(request):
        field = f"{place}/target"
        with about(field):
            target = serving.roots.writable(caller, goal.target)
            _refuse_overlap(source, target, request.source, goal.target)
        if goal.target in seen:
            raise ProblemError(
                INVALID,
                f"{seen[goal.target]} and {field} are both {goal.target!r}; give each target its own path",
                field,
            )
        seen[goal.target] = field
        _check_goal(serving, request, goal, place)
    _check_seconds(serving.settings, request)


def _refuse_overlap(source: Path, target: Path, source_name: str, target_name: str) -> None:
    """As the library would, once it is this conversion's turn."""
    if target == source:
        raise StorageError(
            f"the target {target_name!r} is the source itself; choose another target"
        )
    if source in target.parents:
        raise StorageError(
            f"the target {target_name!r} lies inside the source {source_name!r}; choose a target outside of it"
        )
    if target in source.parents:
        raise StorageError(
            f"the source {source_name!r} lies inside the target {target_name!r}; choose another target"
        )


def _places(request: ConversionRequest | AnyPlanRequest) -> list[tuple[str, Goal]]:
    """Each target, and where the request has it."""
    several = hasattr(request, "targets")
    return [(f"/targets/{i}" if several else "", goal) for i, goal in enumerate(goals(request))]


def _check_goal(
    serving: Serving, request: ConversionRequest | AnyPlanRequest, goal: Goal, place: str
) -> None:
    ceiling = serving.settings.max_memory  # given, so that the host's own need not be looked up
    if goal.mesh is not None:
        with about(f"{place}/mesh"):
            check_arguments(mesh=goal.mesh, max_memory=ceiling)
    with about(f"{place}/layout"):
        layout = content_of(serving, goal.layout)
        where = {name: getattr(goal, name) for name in _LAYOUT} | {"layout": layout}
        if layout is not None:
            check_arguments(**where, max_memory=ceiling)
    members = {name: getattr(goal, name) for name in CHECKED}
    try:
        check_arguments(**where, max_memory=ceiling, **library_options(members))
    except ReshardError as error:
        raise problem_of(error, _field_of(members, place, ceiling)) from error
    check_limits(serving, request.max_memory, request.workers)


def _field_of(members: dict[str, Any], place: str, ceiling: int) -> str | None:
    """The first member that is refused by itself; the target where it takes several."""
    for name, value in members.items():
        try:
            check_arguments(max_memory=ceiling, **library_options({name: value}))
        except ReshardError:
            return f"{place}/{name}"
    return place or None


def content_of(serving: Serving, layout: str | dict[str, Any] | None) -> dict[str, Any] | None:
    """A layout's content, that of a stored one by its name; the library would take text for a path.

    Raises LayoutError where none is stored under that name.
    """
    return layout_content(serving.database, layout) if isinstance(layout, str) else layout


@dataclass(frozen=True, slots=True)
class Limits:
    """What the library may take for one piece of work."""

    max_memory: int
    workers: int


def check_limits(
    serving: Serving, max_memory: str | int | None, workers: int | None = None
) -> Limits:
    """The limits that are asked for, or else the ceilings; ProblemError where they are above these."""
    ceilings = serving.settings
    with about("/max_memory"):
        found = check_arguments(
            max_memory=ceilings.max_memory if max_memory is None else max_memory,
            workers=workers or ceilings.workers,
        )
    _check_ceiling("max_memory", found.max_memory, ceilings.max_memory, "bytes")
    _check_ceiling("workers", found.workers, ceilings.workers, "threads")
    return Limits(found.max_memory, found.workers)


def _check_seconds(settings: Settings, request: ConversionRequest | AnyPlanRequest) -> None:
    """A request may only lower the limits of time; plans have none."""
    for name in ("run_seconds", "no_progress_seconds"):
        wanted, ceiling = getattr(request, name, None), getattr(settings, name)
        if wanted is not None and ceiling:
            _check_ceiling(name, wanted, ceiling, "seconds")


def _check_ceiling(name: str, wanted: float, ceiling: float, unit: str) -> None:
    if wanted > ceiling:
        raise ProblemError(
            INVALID,
            f"{name} is {_number(wanted)} {unit}, above this server's ceiling of {_number(ceiling)} (its setting {name}); ask for at most "
            "that, or leave it out",
            f"/{name}",
            "ask for at most that, or leave it out",
            {"ceiling": ceiling},
        )


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else str(value)


@contextmanager
def about(field: str | None) -> Iterator[None]:
    """What is refused within is refused for this field."""
    try:
        yield
    except ReshardError as error:
        raise problem_of(error, field) from error
    except ProblemError as problem:
        problem.field = problem.field or field
        raise
