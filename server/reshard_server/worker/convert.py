"""Converts: the only place of the server that calls the library's ``convert_all`` and ``apply``."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Any

import reshard
from reshard.answers.record import answer_of
from reshard.errors import ResumeError, TargetBusyError
from reshard.storage.location import locate
from reshard_server.worker.throttle import ProgressThrottle

if TYPE_CHECKING:
    from reshard import ConversionReport

TARGET_BUSY = TargetBusyError


def convert_all(
    request: dict[str, Any],
    progress: ProgressThrottle,
    before_publish: Callable[[str], None] | None = None,
) -> dict[str, Any]:
    """Converts the source to all targets in one run.

    Returns ``reports``, as ``docs/reference/json-output.md`` describes them, and ``read_bytes``, the encoded bytes of the
    source that this run read for all targets.

    If an earlier attempt's files cannot be resumed, the target is started over: the files belong to this
    conversion, and the source or the server's settings changed since.
    """
    warnings: dict[int, str] = {}
    while True:
        try:
            reports, read_bytes = _run(request, warnings.keys(), progress, before_publish)
        except ResumeError as error:
            number = _target_of(error, request)
            if not request["begun"] or number in warnings:
                raise
            warnings[number] = (
                f"the work of an earlier attempt could not be resumed, so the target was started over: {error}"
            )
        else:
            documents = [
                with_warning(answer_of("convert", report), warnings.get(number))
                for number, report in enumerate(reports)
            ]
            return {"reports": documents, "read_bytes": read_bytes}


def _target_of(error: ResumeError, request: dict[str, Any]) -> int:
    """The number of the target that an error names; 0 if it names none, since there is only one."""
    paths = [str(locate(requested["target"])) for requested in request["targets"]]
    return 0 if error.target is None else paths.index(error.target)


def with_warning(report: dict[str, Any], warning: str | None) -> dict[str, Any]:
    """The report with one more warning; None for none."""
    return {**report, "warnings": [*report["warnings"], *([warning] if warning else [])]}


def _run(
    request: dict[str, Any],
    restarted: Collection[int],
    progress: ProgressThrottle,
    before_publish: Callable[[str], None] | None,
) -> tuple[Sequence[ConversionReport], int]:
    """The reports, and the encoded bytes that this run read."""
    targets = []
    for number, requested in enumerate(request["targets"]):
        restart = requested.get("restart", False) or number in restarted
        targets.append(reshard.Target(**{**requested, "restart": restart}))
    shared: dict[str, Any] = {
        **{name: request[name] for name in ("unlisted", "max_memory", "workers", "max_growth")},
        "progress": progress,
        "before_publish": before_publish,
    }
    if request.get("deltas"):
        options = {n: value for n, value in request["targets"][0].items() if n != "target"}
        options["restart"] = targets[0].restart
        made = reshard.apply(
            request["source"], request["deltas"], targets[0].target, **options, **shared
        )
        return (made,), made.read_bytes
    all_made = reshard.convert_all(request["source"], targets, **shared)
    return all_made.reports, all_made.read_bytes
