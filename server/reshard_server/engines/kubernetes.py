"""The engine that does the parts of a conversion in a Kubernetes cluster: one Indexed Job, one pod for each part.

``run_parts_on_kubernetes`` creates the Job of a conversion that was begun, or finds the one that an earlier server process created;
then it gets the Job every second or two, until it ends or an order stops it. ``remove_job`` removes the Job once the conversion is
committed.

The Job goes on without this process: a server that ends, or loses the API for a while, loses nothing.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Literal, TypeVar

from reshard_server.engines.job_api import Job, JobApi, JobApiError, open_api
from reshard_server.engines.job_document import (
    CONVERSION,
    GRACE_SECONDS,
    REQUEST,
    job_document,
    job_name,
    read_template,
)
from reshard_server.engines.part_status import JobEnd, PartStatus, job_end, part_statuses
from reshard_server.settings import KubernetesSettings

LOG = logging.getLogger(__name__)

POLL_SECONDS = 1.5
"""Between two looks at a Job. A cluster allows one client some 5 requests a second without a delay (the default of client-go)."""

OUTAGE_SECONDS = 120.0
"""Seconds without the API after which a conversion fails; twice what the upgrade of an API server takes."""

FIRST_PAUSE_SECONDS = 0.5
LONGEST_PAUSE_SECONDS = 5.0
"""Between two tries of a request; the pause doubles. With an answer that does not come, a server that drains waits for 10 of its 20 seconds."""

STOP_SECONDS = GRACE_SECONDS + 20.0
"""Seconds to wait for the end of pods: their grace, and the time of a busy cluster to tell it."""

REPLACED_AT_MOST = 1
"""Times that a Job is created again after somebody deleted it. A Job that is deleted twice is meant to be gone."""

CANCEL = "cancel"
"""The order that also ends the pods; with any other one they go on, for the server that comes next."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Pace:
    """The clock of a run: seconds that pass, and a function that waits for some."""

    now: Callable[[], float] = time.monotonic
    wait: Callable[[float], None] = time.sleep


@dataclass(frozen=True, slots=True)
class Outcome:
    """The end of a run.

    Attributes:
        state: ``done``: all parts are, and can be committed. ``stopped``: by an order.
        detail: the reason of a failure, with the remedy; the order that stopped the run; "" if it is done.
    """

    state: Literal["done", "failed", "stopped"]
    detail: str = ""


class _StoppedError(Exception):
    """An order came; its text is the order."""


def run_parts_on_kubernetes(
    settings: KubernetesSettings,
    conversion: str,
    target: str,
    parts: int,
    should_stop: Callable[[], str | None],
    report: Callable[[Sequence[PartStatus]], None],
    pace: Pace = Pace(),
) -> Outcome:
    """Does all parts of a conversion that is recorded at its target, and returns once they have ended, or an order came.

    A call with the same conversion, target and number of parts finds the Job of an earlier call. A Job that had failed before is
    replaced: the call asks for another try, and parts resume.

    Args:
        conversion: the id, of lower-case letters and digits.
        target: the path or URL as the pods see it.
        should_stop: returns the order that stops the run, or None. ``cancel`` also ends the pods.
        report: called with the states of all parts whenever one changed.

    Raises ReshardError for a template or settings that cannot be used.
    """
    template = read_template(settings)
    document = job_document(settings, template, conversion, target, parts)
    with open_api(settings) as api:
        try:
            return _Run(api, document, should_stop, pace).watch(parts, report)
        except _StoppedError as stopped:
            if str(stopped) == CANCEL:
                _stop(_Run(api, document, lambda: None, pace))
            return Outcome("stopped", str(stopped))
        except JobApiError as error:
            return Outcome("failed", str(error))


def remove_job(settings: KubernetesSettings, conversion: str, pace: Pace = Pace()) -> None:
    """Begins to remove the Job of a conversion, if it is there. JobApiError if the API does not take it.

    To be called once the conversion is committed, and before it is begun anew: a Job that is complete says that its parts are done.
    """
    document = {"metadata": {"name": job_name(conversion), "annotations": {CONVERSION: conversion}}}
    with open_api(settings) as api:
        _Run(api, document, lambda: None, pace).remove()


def _stop(run: _Run) -> None:
    """Deletes the Job, and waits until its pods have ended."""
    try:
        run.remove()
        deadline = run.pace.now() + STOP_SECONDS
        while run.get() is not None and run.pace.now() < deadline:
            run.pace.wait(POLL_SECONDS)
    except JobApiError as error:
        LOG.warning("the Job %s is not deleted, and its pods go on; delete it: %s", run.name, error)


@dataclass
class _Run:
    """The Job of one conversion, followed by one call.

    Attributes:
        document: the Job as it is created.
        passing: further statuses that count as passing.
    """

    api: JobApi
    document: Job
    should_stop: Callable[[], str | None]
    pace: Pace
    passing: Sequence[int] = ()

    @property
    def name(self) -> str:
        return str(self.document["metadata"]["name"])

    def watch(self, parts: int, report: Callable[[Sequence[PartStatus]], None]) -> Outcome:
        """Follows the Job until it has ended. Raises _StoppedError if an order comes."""
        job, replaced, reported = self._find_or_create(), 0, None
        # While an API server starts, it may know neither the token nor the role that it took before.
        self.passing = (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN)
        while True:
            statuses = part_statuses(job, parts)
            if statuses != reported:
                report(statuses)
                reported = statuses
            if (end := job_end(job)) is not None:
                return Outcome("done") if end.is_complete else self._failed(end, statuses)
            self._pause(POLL_SECONDS)
            found = self.get()
            if found is None or _is_deleted(found):
                if replaced >= REPLACED_AT_MOST:
                    return Outcome(
                        "failed",
                        f"the Job {self.name!r} was deleted again, after it had been created anew; retry the conversion to resume its parts, or "
                        "cancel it instead of deleting its Job",
                    )
                LOG.warning("the Job %s was deleted; it is created again", self.name)
                replaced += 1
                found = self._create()
            job = found

    def _find_or_create(self) -> Job:
        """The Job of an earlier call, unless it has failed since; else a new one."""
        job = self.get()
        if job is None or _is_deleted(job):
            return self._create()
        self._check_own(job)
        end = job_end(job)
        if end is None or end.is_complete:
            LOG.info("found the Job %s of an earlier process", self.name)
            return job
        LOG.info("the Job %s had failed (%s); it is replaced", self.name, end.reason)
        self._insist(lambda: self.api.delete(job))
        return self._create()

    def _create(self) -> Job:
        """A new Job, once the one that is being deleted is gone."""
        while True:
            try:
                return self._insist(lambda: self.api.create(self.document))
            except JobApiError as error:
                if error.status != HTTPStatus.CONFLICT:
                    raise
            # Against an answer that was lost: the Job is there, and may be this run's own.
            job = self.get()
            if job is not None and not _is_deleted(job):
                self._check_own(job)
                return job
            self._pause(POLL_SECONDS)

    def _check_own(self, job: Job) -> None:
        """Raises JobApiError if the Job of this name does something else."""
        has = job["metadata"].get("annotations") or {}
        own = self.document["metadata"]["annotations"]
        other = [name for name in (CONVERSION, REQUEST) if has.get(name) != own.get(name)]
        if other:
            namespace = self.api.settings.namespace
            raise JobApiError(
                f"there is a Job {self.name!r} already, and by its annotations ({', '.join(other)}) it does not do the parts of this conversion; "
                f"find out what it is, delete it (kubectl delete job -n {namespace} {self.name}), and retry the conversion",
                HTTPStatus.CONFLICT,
            )

    def _failed(self, end: JobEnd, statuses: Sequence[PartStatus]) -> Outcome:
        failed = [str(one.number) for one in statuses if one.state == "failed"]
        which = f"; the parts that failed: {', '.join(failed)}" if failed else ""
        logs = f"kubectl logs -n {self.api.settings.namespace} -l batch.kubernetes.io/job-name={self.name} --prefix"
        return Outcome(
            "failed",
            f"the Job {self.name!r} failed ({end.reason}): {end.message}{which}; read the logs of its pods ({logs}), and retry the conversion to "
            "resume its parts",
        )

    def get(self) -> Job | None:
        """The Job of this name as it is now."""
        return self._insist(lambda: self.api.get(self.name))

    def remove(self) -> None:
        """Begins to delete the Job and its pods, if it is there and of this conversion."""
        job = self.get()
        own = self.document["metadata"]["annotations"][CONVERSION]
        if job is not None and (job["metadata"].get("annotations") or {}).get(CONVERSION) == own:
            self._insist(lambda: self.api.delete(job))

    def _insist(self, call: Callable[[], T]) -> T:
        """Repeats a request while the API is out of reach. JobApiError when the patience ends."""
        deadline, pause = self.pace.now() + OUTAGE_SECONDS, FIRST_PAUSE_SECONDS
        while True:
            try:
                return call()
            except JobApiError as error:
                is_passing = error.may_pass or error.status in self.passing
                if not is_passing or self.pace.now() > deadline:
                    raise
                LOG.warning("the request is sent again: %s", error)
                self._pause(max(pause, min(error.pause, LONGEST_PAUSE_SECONDS)))
                pause = min(pause * 2, LONGEST_PAUSE_SECONDS)

    def _pause(self, seconds: float) -> None:
        """Waits. Raises _StoppedError if an order came before."""
        if (order := self.should_stop()) is not None:
            raise _StoppedError(order)
        self.pace.wait(seconds)


def _is_deleted(job: Job) -> bool:
    """True if the Job is there only until its pods have ended."""
    return "deletionTimestamp" in job["metadata"]
