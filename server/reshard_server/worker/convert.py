"""Converting: the one place that calls the library."""

from __future__ import annotations

from collections.abc import Callable, Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any

import reshard
from reshard.cli.json_output import conversion_report, plain
from reshard.errors import ResumeError, TargetBusyError
from reshard_server.worker.throttle import Pace

if TYPE_CHECKING:
    from reshard import MultiReport

TARGET_BUSY = TargetBusyError


def convert_all(
    request: dict[str, Any], pace: Pace, before_publish: Callable[[str], None] | None = None
) -> dict[str, Any]:
    """Converts the source to all targets in one run.

    Returns the ``reports``, as ``docs/reference/json-output.md`` describes them, and ``read_bytes``, what this run read
    of the source for all targets together.

    What an earlier attempt left of a target and cannot be resumed is started over: it was ours,
    made before the source changed or the server got other settings.
    """
    warnings: dict[int, str] = {}
    while True:
        try:
            made = _run(request, warnings.keys(), pace, before_publish)
        except ResumeError as error:
            number = _target_of(error, request)
            if not request["begun"] or number in warnings:
                raise
            warnings[number] = (
                f"what an earlier attempt had done was of no use, and it was started over: {error}"
            )
        else:
            reports = [
                plain(_with_warning(conversion_report(report), warnings.get(number)))
                for number, report in enumerate(made.reports)
            ]
            return {"reports": reports, "read_bytes": made.read_bytes}


def _target_of(error: ResumeError, request: dict[str, Any]) -> int:
    """Which target an error is about; one that names none is about the only one."""
    paths = [str(Path(goal["target"]).absolute()) for goal in request["targets"]]
    return 0 if error.target is None else paths.index(error.target)


def _with_warning(report: dict[str, Any], warning: str | None) -> dict[str, Any]:
    return {**report, "warnings": [*report["warnings"], *([warning] if warning else [])]}


def _run(
    request: dict[str, Any],
    restarted: Collection[int],
    pace: Pace,
    before_publish: Callable[[str], None] | None,
) -> MultiReport:
    goals = []
    for number, goal in enumerate(request["targets"]):
        restart = goal.get("restart", False) or number in restarted
        goals.append(reshard.Target(**{**goal, "restart": restart}))
    return reshard.convert_all(
        request["source"],
        goals,
        max_memory=request["max_memory"],
        workers=request["workers"],
        progress=pace,
        before_publish=before_publish,
    )
