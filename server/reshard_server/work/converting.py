"""Converting: the one place that calls the library."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import reshard
from reshard.cli.json_output import conversion_report, plain
from reshard.errors import ResumeError, TargetBusyError
from reshard_server.work.pace import Pace

if TYPE_CHECKING:
    from reshard.engine.report import ConversionReport

TARGET_BUSY = TargetBusyError


def convert_all(request: dict[str, Any], pace: Pace) -> list[dict[str, Any]]:
    """Converts the source to each target; the reports, as ``docs/json-output.md`` describes them."""
    pace.behind = len(request["targets"]) - 1
    reports = []
    for goal in request["targets"]:
        reports.append(plain(_convert(request, goal, pace)))
        pace.next_target()
    return reports


def _convert(request: dict[str, Any], goal: dict[str, Any], pace: Pace) -> dict[str, Any]:
    try:
        return conversion_report(_run(request, goal, pace))
    except ResumeError as error:
        if not request["begun"]:
            raise
        # Our own attempt left it, before the source changed or the server got other settings.
        report = conversion_report(_run(request, {**goal, "restart": True}, pace))
        warning = (
            f"what an earlier attempt had done was of no use, and it was started over: {error}"
        )
        return {**report, "warnings": [*report["warnings"], warning]}


def _run(request: dict[str, Any], goal: dict[str, Any], pace: Pace) -> ConversionReport:
    options = {name: value for name, value in goal.items() if name != "target"}
    return reshard.convert(
        request["source"],
        goal["target"],
        **options,
        max_memory=request["max_memory"],
        workers=request["workers"],
        progress=pace,
    )
