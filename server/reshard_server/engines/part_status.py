"""The states of parts, and the end of the Job that does them, read from the status of the Job."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from reshard_server.engines.job_api import Job

PartState = Literal["waiting", "running", "done", "failed"]

_RANGE = re.compile(r"(\d+)(?:-(\d+))?")
"""One piece of the status's text of indexes, such as 3 or 5-9."""


@dataclass(frozen=True, slots=True)
class PartStatus:
    """The state of one part.

    Attributes:
        number: from 1 on.
        detail: more about a part that failed; "" otherwise.
    """

    number: int
    state: PartState
    detail: str = ""


@dataclass(frozen=True, slots=True)
class JobEnd:
    """The end of a Job.

    Attributes:
        reason: one word of Kubernetes, such as ``FailedIndexes``; "" if it is complete.
        message: the words of Kubernetes.
    """

    is_complete: bool
    reason: str = ""
    message: str = ""


def part_statuses(job: Job, parts: int) -> tuple[PartStatus, ...]:
    """The states of all parts, in order.

    The status of a Job has the number of pods that run, but not their indexes. Kubernetes begins with the lowest, so as many of the
    first open parts are shown as running.
    """
    status = job.get("status") or {}
    done = _indexes(status.get("completedIndexes"), parts)
    failed = _indexes(status.get("failedIndexes"), parts)
    still_open = [index for index in range(parts) if index not in done | failed]
    running = set(still_open[: status.get("active") or 0])
    where = f"-n {job['metadata']['namespace']} -l batch.kubernetes.io/job-name={job['metadata']['name']}"

    def status_of(index: int) -> PartStatus:
        if index in failed:
            label = f"batch.kubernetes.io/job-completion-index={index}"
            return PartStatus(index + 1, "failed", f"its log: kubectl logs {where},{label}")
        if index in done:
            return PartStatus(index + 1, "done")
        return PartStatus(index + 1, "running" if index in running else "waiting")

    return tuple(map(status_of, range(parts)))


def _indexes(text: str | None, count: int) -> set[int]:
    """The indexes of a text such as ``1,3-5``, as far as they are below the count."""
    found: set[int] = set()
    for piece in _RANGE.finditer(text or ""):
        first, last = int(piece[1]), int(piece[2] or piece[1])
        found.update(range(first, min(last, count - 1) + 1))
    return found


def job_end(job: Job) -> JobEnd | None:
    """The end of a Job; None while it has none."""
    conditions = (job.get("status") or {}).get("conditions") or ()
    for condition in conditions:
        if condition.get("status") == "True" and condition.get("type") in ("Complete", "Failed"):
            if condition["type"] == "Complete":
                return JobEnd(is_complete=True)
            return JobEnd(False, condition.get("reason") or "", condition.get("message") or "")
    return None
