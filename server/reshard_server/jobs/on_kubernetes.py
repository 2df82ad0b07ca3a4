"""The parts of one conversion on the engine of Kubernetes, as its claim allows: orders, limits of time and progress.

The claim stays with this process meanwhile. A server that takes the conversion over finds the Job again.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from reshard_server.engines.job_api import JobApiError
from reshard_server.engines.kubernetes import CANCEL, remove_job, run_parts_on_kubernetes
from reshard_server.engines.part_status import PartStatus
from reshard_server.errors.problems import WORKER_DIED, ProblemError
from reshard_server.jobs.attempt import Begun, Interrupted, OwnClaim, Refused, TimedOut, TimeLimits
from reshard_server.schemas.conversion import ProgressState
from reshard_server.settings import KubernetesSettings

LOG = logging.getLogger(__name__)


def do_parts(
    settings: KubernetesSettings,
    claim: OwnClaim,
    target: str,
    begun: Begun,
    limits: TimeLimits,
) -> Interrupted | Refused | TimedOut | None:
    """Has a Job do all parts of a conversion that was begun; None once they can be committed.

    ``target``: the path or URL of its first target, as the pods see it.
    """
    exceeded: list[ProblemError] = []

    def should_stop() -> str | None:
        if (order := claim.order()) != "continue":
            return order
        if (problem := limits.problem()) is not None:
            exceeded.append(problem)
            return CANCEL
        return None

    def report(statuses: Sequence[PartStatus]) -> None:
        progress = _progress(begun, statuses)
        claim.report(progress)
        limits.see(progress)

    conversion = claim.claim.conversion
    end = run_parts_on_kubernetes(settings, conversion, target, begun.parts, should_stop, report)
    if end.state == "done":
        return None
    if exceeded:
        return TimedOut(exceeded[0])
    if end.state == "stopped":
        return Interrupted("cancel" if end.detail == CANCEL else claim.order())
    return Refused(ProblemError(WORKER_DIED, end.detail).document(), busy=False)


def _progress(begun: Begun, statuses: Sequence[PartStatus]) -> ProgressState:
    """The parts that are done as progress: a Job tells no more."""
    done, running = (sum(one.state == state for one in statuses) for state in ("done", "running"))
    return ProgressState(
        stage="copying",
        moved_bytes=begun.total_bytes * done // max(1, begun.parts),
        total_bytes=begun.total_bytes,
        tasks_done=done,
        tasks=begun.parts,
        tensor=f"{done} of {begun.parts} parts are done, {running} run",
    )


def forget_job(settings: KubernetesSettings, conversion: str) -> None:
    """Removes the Job of a conversion that was committed, or failed; a cluster that does not answer keeps it."""
    try:
        remove_job(settings, conversion)
    except JobApiError as error:
        LOG.warning("the Job of the conversion stays: %s", error)
