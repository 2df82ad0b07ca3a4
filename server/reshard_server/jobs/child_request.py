"""The request as the child gets it: real paths, the layouts' contents, and no more than the settings allow.

A source that is held for the conversion (hard links, made for a schedule) is read there.

It is made anew for each attempt, so that every path is looked at right before it is used.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Protocol

import sqlalchemy as sa

from reshard.geometry.sizes import parse_bytes
from reshard_server.db.conversions.hard_links import held_path
from reshard_server.db.layouts.layouts import stored_layout
from reshard_server.schemas.conversion import (
    Conversion,
    Goal,
    SeveralTargets,
    goals,
    library_options,
)
from reshard_server.settings import MIB, Settings

BESIDE_BUDGET_BYTES = 2048 * MIB
BESIDE_THREAD_BYTES = 64 * MIB
"""What the kernel allows a child beside its memory budget, as address space that can be written to.

The budget is kept by the library; this only ends a child that has gone wrong. Measured: 60 to 870 MiB, of
which most is set aside by threads (stacks, heaps, codecs) and never touched.
"""


class Roots(Protocol):
    """What is needed of ``auth.paths.Roots``."""

    def recheck(self, text: str, *, target: bool = False) -> Path: ...


def resolved(
    db: sa.Engine, settings: Settings, roots: Roots, conversion: Conversion, *, begun: bool
) -> dict[str, Any]:
    """The child's document.

    Args:
        begun: whether an attempt moved something already; then nothing is thrown away for ``restart``.

    Raises ProblemError where a path may not be used any more, LayoutError where a layout is gone.
    """
    request = conversion.request
    budget = _budget(request.max_memory, settings)
    workers = min(request.workers or settings.workers, settings.workers)
    as_of = conversion.created_at.timestamp()
    held = held_path(db, conversion.id)
    return {
        "source": str(held if held and held.is_dir() else roots.recheck(request.source)),
        "targets": [_goal(db, roots, goal, as_of, begun) for goal in goals(request)],
        "several": isinstance(request, SeveralTargets),
        "max_memory": budget,
        "workers": workers,
        "begun": begun,
        "data_bytes": data_bytes(budget, workers),
    }


def data_bytes(budget: int, workers: int) -> int:
    """What the kernel allows a child with this budget."""
    return budget + BESIDE_BUDGET_BYTES + BESIDE_THREAD_BYTES * (workers + _processors())


def _processors() -> int:
    return os.cpu_count() or 1


def _budget(wanted: str | int | None, settings: Settings) -> int:
    if wanted is None:
        return settings.max_memory
    return min(parse_bytes(wanted), settings.max_memory)


def _goal(db: sa.Engine, roots: Roots, goal: Goal, as_of: float, begun: bool) -> dict[str, Any]:
    document = goal.model_dump(mode="json")
    document["target"] = str(roots.recheck(goal.target, target=True))
    document["restart"] = goal.restart and not begun
    if isinstance(goal.layout, str):  # the library would take text for a path
        document["layout"] = stored_layout(db, goal.layout, as_of)
    return library_options(document)
