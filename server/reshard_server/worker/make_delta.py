"""Publishes a version: the only place of the server that calls the library's ``delta``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import reshard
from reshard.answers.record import answer_of
from reshard.errors import (
    FormatError,
    MemoryBudgetError,
    MissingError,
    PlanError,
    ReshardError,
    ResumeError,
    SourceChangedError,
    TargetExistsError,
    VerificationError,
)
from reshard_server.worker.convert import convert_all, with_warning
from reshard_server.worker.throttle import ProgressThrottle

RULES = ("layout", "select", "drop", "rename", "cast", "map", "sizes", "reverse")

NO_DELTA = (PlanError, FormatError, MissingError, SourceChangedError, VerificationError)
"""Refusals because of the two checkpoints; a full version may still be possible."""


def publish_version(
    request: dict[str, Any],
    progress: ProgressThrottle,
    before_publish: Callable[[str], None] | None = None,
) -> dict[str, Any]:
    """Makes the delta of a request, or the full version in its place if the request allows that.

    Returns ``reports``, with the document of ``reshard delta``, its tensors as a list, or of ``reshard convert``, and ``read_bytes``, which is
    None for a delta.

    An attempt may have published before its process ended; then its version is compared, and stays.
    """
    asked = {**request["delta"]}
    old, or_full = asked.pop("old"), asked.pop("or_full")
    [requested] = request["targets"]
    try:
        made = reshard.delta(
            old,
            request["source"],
            requested["target"],
            **{name: requested[name] for name in RULES},
            **asked,
            **{name: request[name] for name in ("unlisted", "max_memory", "workers")},
            again=request["begun"],
            progress=progress,
            before_publish=before_publish,
        )
    except NO_DELTA as refused:
        if not or_full or isinstance(refused, MemoryBudgetError):
            raise
        return _full_version(request, progress, before_publish, refused)
    except ResumeError as refused:  # of a full version that another attempt began here
        if not or_full:
            raise
        return _full_version(request, progress, before_publish, refused)
    except TargetExistsError as refused:  # perhaps the full version of an earlier attempt
        if not (or_full and request["begun"]):
            raise
        return _full_version(request, progress, before_publish, refused)
    report = answer_of("delta", made)
    return {
        "reports": [{**report, "tensors": [*report["tensors"].values()]}],  # as all reports here
        "read_bytes": None,
    }


def _full_version(
    request: dict[str, Any],
    progress: ProgressThrottle,
    before_publish: Callable[[str], None] | None,
    refused: ReshardError,
) -> dict[str, Any]:
    [requested] = request["targets"]
    full = {**requested, "to": "safetensors", "restart": not request["begun"]}
    made = convert_all({**request, "targets": [full]}, progress, before_publish)
    warning = f"a full version was published, since no delta could be made: {refused}"
    return {**made, "reports": [with_warning(report, warning) for report in made["reports"]]}
